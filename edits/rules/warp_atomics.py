"""Additions of every thread to one address: the lanes of a warp add up first, and one of them adds the sum."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tree_sitter import Node

from mctskernel.core.edit import Category, Edit
from mctskernel.core.evaluation import Bottleneck
from mctskernel.core.expression import ExpressionError, evaluate_int
from mctskernel.core.launch_plan import Launch
from mctskernel.edits.indexing import Guarded, condition_of, guarded
from mctskernel.edits.rewrite import Rewrite, apply, dedented, fresh_names, indented, only_launches
from mctskernel.edits.rule import Context, Rule, edit
from mctskernel.edits.rules.coarsening import COLLECTIVES
from mctskernel.edits.syntax import (
    Function,
    Replacement,
    calls,
    identifiers,
    indentation,
    names_in_scope,
    text_of,
    walk,
)

TYPES = frozenset({"float", "int", "unsigned", "unsigned int"})
WARP = 32


@dataclass(frozen=True)
class Addition:
    """`atomicAdd(target, value)` at the end of a guarded body, for the same target in all threads."""

    body: Guarded
    before: tuple[Node, ...]
    target: Node
    value: Node
    type: str


def _propose(context: Context) -> Iterable[Edit]:
    for launch, function in only_launches(context):
        found = _addition(function)
        if found is None or not _whole_warps(context, launch):
            continue
        yield edit(
            Category.WARP_PRIMITIVES,
            f"add up in warps before {text_of(found.target)} in {function.name}",
            _summed(context, function, found),
            rationale=(
                "Additions to one address take turns; lanes of a warp can add up their values with shuffles, so that "
                "one of them adds for all."
            ),
            expected_effect=f"{WARP} times fewer atomic additions.",
        )


def _addition(function: Function) -> Addition | None:
    body = guarded(function)
    if body is None or not body.statements or any(d.shared for d in function.declarations):
        return None
    *before, last = body.statements
    if any(node.type != "declaration" for node in before) or last.type != "expression_statement":
        return None
    call = last.named_children[0]
    found = calls(last, "atomicAdd")
    arguments = call.child_by_field_name("arguments")
    if len(found) != 1 or found[0] != call or arguments is None or len(arguments.named_children) != 2:
        return None
    if any(
        text_of(each.children[0]).startswith((*COLLECTIVES, "atomic"))
        for each in calls(function.body)
        if each != call
    ):
        return None
    target, value = arguments.named_children
    parameters = {p.name: p for p in function.parameters}
    pointers = [
        parameters[name] for name in identifiers(target) if name in parameters and parameters[name].pointer
    ]
    if not identifiers(target) <= parameters.keys() or len(pointers) != 1:
        return None
    if calls(target) or pointers[0].type not in TYPES or _uses(function, pointers[0].name) != 1:
        return None
    if any(True for _ in walk(value, "assignment_expression", "update_expression")):
        return None
    return Addition(body, tuple(before), target, value, pointers[0].type)


def _uses(function: Function, name: str) -> int:
    return sum(text_of(node) == name for node in walk(function.body, "identifier"))


def _whole_warps(context: Context, launch: Launch) -> bool:
    try:
        return len(launch.block) == 1 and evaluate_int(launch.block[0], context.kernel.macros) % WARP == 0
    except ExpressionError:
        return False


def _summed(context: Context, function: Function, found: Addition) -> str:
    source, guard = context.source, found.body.guard
    total, offset = fresh_names(names_in_scope(source, function), "warp_total", "offset")
    condition, consequence = condition_of(guard), guard.child_by_field_name("consequence")
    inside = text_of(condition) if condition is not None else "true"
    leaves = consequence is not None and any(True for _ in walk(consequence, "return_statement"))
    lines = [
        f"{found.type} {total} = 0;",
        f"if ({f'!({inside})' if leaves else inside}) {{",
        *indented([*dedented(source, found.before), f"{total} = {text_of(found.value)};"]),
        "}",
        "#pragma unroll",
        f"for (int {offset} = 16; {offset} > 0; {offset} /= 2) {{",
        f"    {total} += __shfl_down_sync(0xffffffff, {total}, {offset});",
        "}",
        "if (threadIdx.x % 32 == 0) {",
        f"    atomicAdd({text_of(found.target)}, {total});",
        "}",
    ]
    end = max(guard.end_byte, found.body.statements[-1].end_byte)
    text = f"\n{indentation(source, guard)}".join(lines)
    return apply(context, Rewrite(function, more=[Replacement(guard.start_byte, end, text)]))


RULES = (
    Rule(
        "warp-atomics",
        Category.WARP_PRIMITIVES,
        frozenset({Bottleneck.ATOMICS, Bottleneck.L2_BANDWIDTH}),
        _propose,
        prior=2.0,
    ),
)
