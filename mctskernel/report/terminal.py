"""A run in the terminal: headline, best path with its evidence, one node in full, and diffs.

Texts of candidates and of language models are printed as `Text`, which knows no markup.
"""

from __future__ import annotations

import io
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from mctskernel.core.evaluation import Evaluation
from mctskernel.core.quantities import speedup_text, time_text
from mctskernel.core.task import short_caveats
from mctskernel.core.user_errors import RunError
from mctskernel.edits.patch import unified_diff
from mctskernel.profiling.changes import compare
from mctskernel.report.details import node_details
from mctskernel.report.document import StoryStep, story_step, view_headline, view_story
from mctskernel.report.explained import ExplainedKernel, explained, print_explained
from mctskernel.report.notes import counted
from mctskernel.report.view import View, timing_text
from mctskernel.tree.node import Node
from mctskernel.tree.trajectory import edit_title, run_seconds

UNWRAPPED = 1000  # columns where nothing is wrapped


LEGEND = (
    "~ what the edit changed   - what limits the kernel now   > what was predicted   ! a guardrail's warning"
)


def print_run(console: Console, view: View) -> None:
    """Print the headline and the best path, each edit with its evidence and diff."""
    console.print(Group(*_headline(view)))
    for step in view.steps:
        console.print(Group(*_step(console, view, story_step(view, step))))
    console.print(Text(f"\n{LEGEND}\nSource: mctskernel best {view.folder.path}", "dim"))


def run_text(view: View) -> str:
    """The same as plain text."""
    console = Console(file=io.StringIO(), width=UNWRAPPED, color_system=None)
    with console.capture() as printed:
        print_run(console, view)
    return "".join(f"{line.rstrip()}\n" for line in printed.get().splitlines())


def summary(view: View) -> RenderableType:
    """The headline and a line for each edit of the best path."""
    return Group(*_headline(view), path_table(view))


def path_table(view: View) -> Table:
    source = view.numbers
    table = Table(box=None, pad_edge=False)
    for heading in ("node", "edit", "time", "gain", "total"):
        table.add_column(heading, justify="left" if heading == "edit" else "right")
    for step in view.steps:
        table.add_row(
            str(step.node),
            Text(edit_title(view.tree, view.node(step.node))),
            time_text(step.seconds) if step.seconds is not None else "",
            speedup_text(step.gain, source) if step.edit else "",
            speedup_text(step.speedup, source),
        )
    return table


def print_node(console: Console, view: View, number: int) -> None:
    evaluation, found = view.evaluation(number), node_details(view, number)
    console.print(Text(f"Node {number}: {evaluation.outcome}, {evaluation.source}", "bold"))
    if evaluation.message:
        console.print(Text(evaluation.message))
    if evaluation.guard:
        console.print(Text(f"Detected by: {evaluation.guard}"))
    for timing, conditions in zip(found.timings, found.conditions, strict=True):
        console.print(Text(timing_text(timing)))
        if conditions:
            console.print(Text(f"  {found.gpu}: {conditions}", "dim"))
    if evaluation.timings:
        print_explained(console, explained_node(view, number))
    for title, numbers in (("Counters", found.counters), ("Cost by stage, s", found.stage_seconds)):
        if numbers:
            console.print(_numbers(title, numbers))
    console.print(Group(*_warnings(evaluation)))
    if diff := view.diff(number):
        console.print(_highlighted(console, diff))


def explained_node(view: View, number: int, against: int | None = None) -> ExplainedKernel:
    """What limits a kernel, compared with its parent's or another. Raises RunError for a node without a time."""
    evaluation = view.evaluation(number)
    if not evaluation.timings:
        raise RunError(
            f"Node {number} of {view.folder.path} has no time to explain: {evaluation.outcome}: {evaluation.message}"
        )
    before = view.node(number).parent if against is None else against
    name = _name(view, number)
    if before is None:
        return explained(name, evaluation)
    return explained(name, evaluation, _name(view, before), view.node(before).evaluation)


def _name(view: View, number: int) -> str:
    return f"node {number} ({edit_title(view.tree, view.node(number))})"


def print_diff(console: Console, view: View, nodes: tuple[int, int], relation: str = "") -> None:
    """Print time, counts and highlighted diff between kernels; `relation` is the first's to the second, or empty."""
    for line, style in _diff_heading(view, nodes, relation):
        console.print(Text(line, style), soft_wrap=True)
    if diff := _diff(view, nodes):
        console.print(_highlighted(console, diff))


def plain_diff(view: View, nodes: tuple[int, int], relation: str = "") -> str:
    """The same as plain text: a unified diff with a heading, which `patch` accepts."""
    heading = "".join(f"{line}\n" for line, _ in _diff_heading(view, nodes, relation))
    return heading + _diff(view, nodes)


def _headline(view: View) -> list[RenderableType]:
    evaluation, found = view.evaluation(view.best.id), view_headline(view)
    first = Text.assemble(
        (f"{found.task}: ", "bold"),
        (speedup_text(view.steps[-1].speedup, evaluation.source), "bold green"),
        f" over {found.start}",
        f", {found.over_pytorch}" if found.over_pytorch else "",
        f", {evaluation.source} ({found.device})",
        (short_caveats(found.caveats), "yellow"),
    )
    counts = ", ".join(f"{count} {outcome}" for outcome, count in found.outcomes.items())
    return [
        first,
        Text(f"{counted(found.evaluations, 'evaluation')}: {counts}"),
        *(Text(sentence, "dim") for sentence in view_story(view).notes),
        Text(found.state, "" if view.answer else "yellow"),
        *(Text(sentence, "yellow") for sentence in found.sentences),
    ]


def _highlighted(console: Console, diff: str) -> RenderableType:
    """A diff in colours; plain text where its lines would be as long as a pipe is wide."""
    return Syntax(diff, "diff", word_wrap=True) if console.is_terminal else Text(diff)


def _step(console: Console, view: View, step: StoryStep) -> Iterator[RenderableType]:
    gain = f"  {speedup_text(step.gain, view.numbers)}" if step.gain else ""
    yield Text("")
    yield Text.assemble(
        (f"node {step.node}  ", "dim"), (step.title, "bold"), (gain, "green"), f"  {step.time}"
    )
    evaluation = view.evaluation(step.node)
    lines: list[RenderableType] = [Text(step.why)] if step.why else []
    lines += [Text(f"~ {sentence}", "cyan") for sentence in step.effects]
    lines += [Text(f"- {sentence}") for sentence in step.evidence]
    lines += _warnings(evaluation)
    if diff := view.diff(step.node):
        lines.append(_highlighted(console, diff))
    yield from (Padding(line, (0, 0, 0, 2)) for line in lines)


def _warnings(evaluation: Evaluation) -> list[RenderableType]:
    lines: list[RenderableType] = [Text(f"! {flag}", "yellow") for flag in evaluation.flags]
    lines += [Text(f"! quarantined: {evaluation.quarantine}", "red")] if evaluation.quarantine else []
    for used in evaluation.resources:
        spilled = used.spill_store_bytes + used.spill_load_bytes
        parts = [f"{used.registers} registers", f"{used.shared_bytes} B of shared memory"]
        parts += [f"{spilled} B of spills"] if spilled else []
        lines.append(Text(f"{used.kernel}: {', '.join(parts)}", "dim"))
    return lines


def _numbers(title: str, numbers: dict[str, float]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, show_header=False)
    table.min_width = len(title)
    table.add_column(overflow="fold")
    table.add_column(justify="right")
    for name, value in numbers.items():
        table.add_row(Text(name), f"{value:,.0f}" if value >= 1000 else f"{value:.6g}")
    return table


def _diff(view: View, nodes: tuple[int, int]) -> str:
    return unified_diff(*map(view.source, nodes))


def _diff_heading(view: View, nodes: tuple[int, int], relation: str) -> Iterator[tuple[str, str]]:
    """Lines and their styles: the two nodes, and how the time and the counts behind it changed."""
    old, new = map(view.node, nodes)
    yield f"--- {_title(view, old)}{f', the {relation}' if relation else ''}", "bold red"
    yield f"+++ {_title(view, new)}", "bold green"
    found = compare(old.evaluation, new.evaluation) if old.evaluation and new.evaluation else None
    for sentence in found.sentences if found else ():
        yield f"~ {sentence}", "cyan"
    if old.kernel.source == new.kernel.source:
        yield "The two sources are equal.", ""


def _title(view: View, node: Node) -> str:
    evaluation = node.evaluation
    state = str(evaluation.outcome) if evaluation else "in flight"
    if evaluation and (seconds := run_seconds(evaluation)):
        state = f"{time_text(seconds)} {evaluation.source}"
    return f"node {node.id}: {' '.join(edit_title(view.tree, node).split())} ({state})"
