"""A kernel's text rewritten as a whole: its body, its launch, its macros."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tree_sitter import Node

from mctskernel.core.kernel import Kernel, leading_comment
from mctskernel.core.launch_plan import Extent, Launch, LaunchPlan
from mctskernel.edits import syntax as cu
from mctskernel.edits.plan_text import with_plan
from mctskernel.edits.rule import Context


@dataclass(frozen=True)
class Rewrite:
    """What becomes of one kernel; None leaves a part as it is.

    `about` is a sentence that replaces the comment above the kernel, `defines` new macros by name,
    `functions` device functions to put before the kernel, `plan` the new plan.
    """

    function: cu.Function
    plan: LaunchPlan | None = None
    about: str | None = None
    defines: Mapping[str, int | str] = field(default_factory=dict)
    functions: Sequence[str] = ()
    more: Sequence[cu.Replacement] = ()


def apply(context: Context, rewrite: Rewrite) -> str:
    """The new text. Macros that the rewrite leaves without a use go, and so do launch bounds if the plan changes."""
    function, source = rewrite.function, context.source
    changes = list(rewrite.more)
    if rewrite.plan is not None and function.launch_bounds is not None:
        bounds = function.launch_bounds
        changes.append(cu.Replacement(bounds.start_byte, _skip_blanks(source, bounds.end_byte), ""))
    if rewrite.functions or rewrite.about is not None:
        changes.append(_heading(source, function, rewrite))
    if rewrite.defines:
        changes.append(cu.define(source, rewrite.defines))
    kernel = Kernel(cu.replace(source, changes))
    if rewrite.plan is not None:
        kernel = with_plan(kernel, rewrite.plan)
    return without_dead_macros(source, kernel.source)


def only_launches(context: Context) -> tuple[tuple[Launch, cu.Function], ...]:
    """The launches whose function no other launch uses, so that both can change together."""
    names = [launch.kernel for launch in context.plan.launches]
    return tuple((launch, f) for launch, f in context.launched if names.count(launch.kernel) == 1)


def with_launch(
    plan: LaunchPlan, launch: Launch, grid: Sequence[Extent], block: Sequence[Extent]
) -> LaunchPlan:
    """The plan with another grid and block for one of its launches."""
    new = dataclasses.replace(launch, grid=tuple(grid), block=tuple(block))
    return dataclasses.replace(
        plan, launches=tuple(new if each is launch else each for each in plan.launches)
    )


def without_dead_macros(before: cu.Source, text: str) -> str:
    """Drop the definitions of object-like macros that `before` used and the new text doesn't."""
    while True:
        source = cu.parse(text)
        dead = [
            node
            for node in cu.walk(source.root, "preproc_def")
            if _uses(text, node) == 1 and _uses(before.text, node) != 1
        ]
        if not dead:
            return text
        text = cu.replace(source, [cu.Replacement(node.start_byte, node.end_byte, "") for node in dead[:1]])


def dedented(source: cu.Source, nodes: Iterable[Node]) -> tuple[str, ...]:
    """The lines of consecutive statements, moved to the left margin."""
    found = list(nodes)
    if not found:
        return ()
    data = source.text.encode()
    start = data.rfind(b"\n", 0, found[0].start_byte) + 1
    lines = data[start : found[-1].end_byte].decode().expandtabs(4).splitlines()
    head = data[start : found[0].start_byte].decode().expandtabs(4)
    if head.strip():
        lines[0] = lines[0][len(head) :]
        margin = min((_margin(line) for line in lines[1:] if line.strip()), default=0)
        return (lines[0], *(line[margin:] for line in lines[1:]))
    margin = min(_margin(line) for line in lines if line.strip())
    return tuple(line[margin:].rstrip() for line in lines)


def changed(source: cu.Source, node: Node, changes: Iterable[cu.Replacement]) -> list[str]:
    """The lines of a statement with replacements made inside it, moved to the left margin."""
    data = source.text.encode()
    position, pieces = node.start_byte, []
    for change in sorted(changes, key=lambda change: change.start):
        pieces += [data[position : change.start].decode(), change.text]
        position = change.end
    text = "".join([*pieces, data[position : node.end_byte].decode()])
    margin = cu.indentation(source, node)
    return [line.removeprefix(margin) for line in text.split("\n")]


def indented(lines: Iterable[str], levels: int = 1) -> list[str]:
    """Lines moved to the right by so many levels of four blanks."""
    return [f"{'    ' * levels}{line}" if line else line for line in lines]


def each(variable: str, count: str, *body: str) -> list[str]:
    """An unrolled loop over `variable` from 0 up to `count`."""
    loop = f"for (int {variable} = 0; {variable} < {count}; ++{variable}) {{"
    return ["#pragma unroll", loop, *indented(body), "}"]


def _with_linkage(function: cu.Function) -> Node:
    anchor = function.node
    while anchor.parent is not None and anchor.parent.type == "linkage_specification":
        anchor = anchor.parent
    return anchor


def _with_comment(source: cu.Source, anchor: Node) -> Node:
    """The first line of the comment right above a node, or the node; the launch plan's comment is none."""
    start = anchor
    before = anchor.prev_sibling
    lead = leading_comment(source.text)
    while (
        before is not None
        and before.type == "comment"
        and before.end_point[0] + 1 == start.start_point[0]
        and (lead is None or before.start_byte > lead[1])
    ):
        start, before = before, before.prev_sibling
    return start


def _heading(source: cu.Source, function: cu.Function, rewrite: Rewrite) -> cu.Replacement:
    anchor = _with_linkage(function)
    start = _with_comment(source, anchor)
    text = "".join(f"{function_text.strip()}\n\n" for function_text in rewrite.functions)
    if rewrite.about is None:
        return cu.Replacement(start.start_byte, start.start_byte, text)
    return cu.Replacement(start.start_byte, anchor.start_byte, f"{text}// {rewrite.about}\n")


def _uses(text: str, macro: Node) -> int:
    """How often a text outside of line comments has the name of a macro."""
    name = cu.text_of(cu.field(macro, "name"))
    return len(re.findall(rf"\b{re.escape(name)}\b", re.sub(r"//[^\n]*", "", text)))


def _skip_blanks(source: cu.Source, position: int) -> int:
    data = source.text.encode()
    while data[position : position + 1] == b" ":
        position += 1
    return position


def _margin(line: str) -> int:
    return len(line) - len(line.lstrip())
