"""A run in the terminal: headline, outcomes, and the best path edit by edit with its evidence."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from mctskernel.core.evaluation import Evaluation
from mctskernel.profiling.bottleneck import account
from mctskernel.profiling.quantities import time_text
from mctskernel.report.conversation import conversation_sentences
from mctskernel.report.gpus import conditions_text, gpu_name, gpu_sentences
from mctskernel.report.judgements import judgement_sentences
from mctskernel.report.predictions import accuracy_sentences, prediction_sentence
from mctskernel.report.view import View, timing_text
from mctskernel.starts import origin
from mctskernel.tree.trajectory import STARTING_KERNEL, Step, trajectory

# Texts of candidates and of models are printed as Text, which knows no markup.


def print_run(console: Console, view: View) -> None:
    """The headline and the best path, each edit with what it did."""
    console.print(Group(*_headline(view)))
    for step in view.steps:
        console.print(Group(*_step(view, step)))
    console.print(_sources(view))


def print_node(console: Console, view: View, number: int) -> None:
    """Everything that is known of one node."""
    evaluation = view.evaluation(number)
    console.print(Text(f"Node {number}: {evaluation.outcome}, {evaluation.source}", "bold"))
    if evaluation.message:
        console.print(Text(evaluation.message))
    if evaluation.guard:
        console.print(Text(f"Noticed by: {evaluation.guard}"))
    for timing in evaluation.timings:
        console.print(Text(timing_text(timing)))
        if timing.conditions is not None:
            state = conditions_text(timing.conditions)
            console.print(Text(f"  {gpu_name(evaluation.gpu)}: {state}", "dim"))
    console.print(
        _numbers("Counters", evaluation.counters), _numbers("Terms of the time, s", evaluation.terms)
    )
    console.print(_numbers("Cost by stage, s", evaluation.stage_seconds))
    if predicted := prediction_sentence(trajectory(view.tree, number).steps[-1]):
        console.print(Text(f"> {predicted}", "magenta"))
    if found := view.comparison(number):
        console.print(Group(*(Text(f"~ {sentence}", "cyan") for sentence in found.sentences)))
    console.print(Group(*_evidence(evaluation)))
    if diff := view.diff(number):
        console.print(Syntax(diff, "diff"))


def print_summary(console: Console, view: View) -> None:
    """The short story at the end of a search: the headline and a line for each edit of the best path."""
    console.print(Group(*_headline(view)))
    table = Table(box=None, pad_edge=False)
    for heading in ("node", "edit", "time", "gain", "total"):
        table.add_column(heading, justify="left" if heading == "edit" else "right")
    for step in view.steps:
        table.add_row(
            str(step.node),
            Text(step.edit.title if step.edit else STARTING_KERNEL),
            time_text(step.seconds) if step.seconds is not None else "",
            f"{step.gain:.2f}x" if step.edit else "",
            f"{step.speedup:.2f}x",
        )
    console.print(table)


def _headline(view: View) -> list[RenderableType]:
    evaluation = view.evaluation(view.best.id)
    first = Text.assemble(
        (f"{view.manifest.configuration.task}: ", "bold"),
        (f"{view.steps[-1].speedup:.2f}x", "bold green"),
        f" over the starting kernel, {evaluation.source}",
        f" ({view.device})",
        ("; unanchored" if view.manifest.unanchored else "", "yellow"),
    )
    counts = ", ".join(f"{count} {outcome}" for outcome, count in view.outcomes.items())
    spent = view.manifest.configuration.spent.evaluations
    counts += f"; {spent} of starting configurations that failed" if spent else ""
    lines: list[RenderableType] = [first, Text(f"{view.evaluations} evaluations: {counts}")]
    lines += [Text(f"> {sentence}", "magenta") for sentence in accuracy_sentences(view.tree)]
    lines += [Text(f"> {sentence}", "magenta") for sentence in judgement_sentences(view.tree)]
    lines += [Text(sentence, "dim") for sentence in conversation_sentences(view.conversation, view.tree)]
    lines += [Text(sentence, "dim") for sentence in gpu_sentences(view.gpus)]
    if view.answer is None:
        return [*lines, Text(view.gate, "yellow")]
    lines.append(Text(view.gate))
    if start := origin(view.tree, view.best.id):
        lines.append(Text(f"It began at the starting point '{start}'."))
    lines += [Text(f"Refused there: node {node}: {why}", "yellow") for node, why in view.answer.refused]
    lines += [Text(f"Noticed there: {remark}", "yellow") for remark in view.answer.remarks]
    if view.answer.node == 0:
        lines.append(Text("Nothing faster than the starting kernel passed every guard.", "yellow"))
    return lines


def _step(view: View, step: Step) -> list[RenderableType]:
    title = step.edit.title if step.edit else STARTING_KERNEL
    gain = f"  {step.gain:.2f}x" if step.edit else ""
    seconds = f"  {time_text(step.seconds)}" if step.seconds is not None else ""
    lines: list[RenderableType] = [
        Text(""),
        Text.assemble((f"node {step.node}  ", "dim"), (title, "bold"), (gain, "green"), seconds),
    ]
    if step.edit and step.edit.rationale:
        lines.append(Padding(Text(step.edit.rationale), (0, 0, 0, 2)))
    if predicted := prediction_sentence(step):
        lines.append(Padding(Text(f"> {predicted}", "magenta"), (0, 0, 0, 2)))
    if found := view.comparison(step.node):
        lines += [Padding(Text(f"~ {sentence}", "cyan"), (0, 0, 0, 2)) for sentence in found.sentences]
    lines += [Padding(line, (0, 0, 0, 2)) for line in _evidence(view.evaluation(step.node))]
    if diff := view.diff(step.node):
        lines.append(Padding(Syntax(diff, "diff"), (0, 0, 0, 2)))
    return lines


def _evidence(evaluation: Evaluation) -> list[RenderableType]:
    causes = evaluation.diagnosis.causes if evaluation.diagnosis else ()
    lines: list[RenderableType] = [Text(f"= {sentence}") for sentence in account(evaluation)]
    lines += [Text(f"- {cause.sentence}") for cause in causes]
    lines += [Text(f"! {flag}", "yellow") for flag in evaluation.flags]
    lines += [Text(f"! quarantined: {evaluation.quarantine}", "red")] if evaluation.quarantine else []
    for used in evaluation.resources:
        spilled = used.spill_store_bytes + used.spill_load_bytes
        parts = [f"{used.registers} registers", f"{used.shared_bytes} B of shared memory"]
        parts += [f"{spilled} B of spills"] if spilled else []
        lines.append(Text(f"{used.kernel}: {', '.join(parts)}", "dim"))
    return lines


def _numbers(title: str, numbers: dict[str, float]) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        box=None,
        pad_edge=False,
        show_header=False,
        min_width=len(title),
    )
    for name, value in numbers.items():
        table.add_row(Text(name), f"{value:.6g}")
    return table


def _sources(view: View) -> Text:
    return Text(f"\nSource: mctskernel best {view.folder.path}", "dim")
