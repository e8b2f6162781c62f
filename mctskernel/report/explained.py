"""Why a kernel takes as long as it does, and what became of another one: for the terminal and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mctskernel.core.evaluation import Cause, Evaluation, Source
from mctskernel.profiling.bottleneck import account
from mctskernel.profiling.changes import Comparison, compare
from mctskernel.profiling.model.explanation import MEANINGS, ExplainedTerm, doubt, explain
from mctskernel.profiling.quantities import time_text
from mctskernel.profiling.utilisation import BusyTime, busy_times

ROOMY = 100
"""Columns of a terminal from which a table says what each term is."""

SMALLEST = 0.001
"""The fraction of the time below which a term has no row."""


@dataclass(frozen=True)
class ComparedKernel:
    """What became of the kernel called `against`: the comparison, and whether it is a tie."""

    against: str
    is_tie: bool
    sentences: tuple[str, ...]
    comparison: Comparison


@dataclass(frozen=True)
class ExplainedKernel:
    """All that is known of why a kernel takes `seconds` at `shape`, the first search shape.

    `low` and `high` enclose the true time: by one standard deviation if it is modelled, by the interval of the
    median if it is measured. `terms` are a model's; `busy` is there for a kernel that was measured with counters.
    """

    kernel: str
    source: Source
    shape: str
    seconds: float
    low: float
    high: float
    sentences: tuple[str, ...]
    doubt: str
    terms: tuple[ExplainedTerm, ...]
    busy: tuple[BusyTime, ...]
    causes: tuple[Cause, ...]
    flags: tuple[str, ...]
    compared: ComparedKernel | None = None


def explained(
    name: str, evaluation: Evaluation, against: str = "", before: Evaluation | None = None
) -> ExplainedKernel:
    """What there is to say of an evaluation that was timed, compared with the evaluation `before` if there is one."""
    timing, found = evaluation.timings[0], explain(evaluation)
    low, high = found.interval if found else (timing.low, timing.high)
    comparison = compare(before, evaluation) if before else None
    return ExplainedKernel(
        name,
        evaluation.source,
        timing.shape,
        timing.seconds,
        low,
        high,
        account(evaluation),
        doubt(found) if found else "",
        found.terms if found else (),
        () if found else busy_times(evaluation.counters),
        evaluation.diagnosis.causes if evaluation.diagnosis else (),
        evaluation.flags,
        ComparedKernel(against, comparison.is_tie, comparison.sentences, comparison) if comparison else None,
    )


def to_json(kernel: ExplainedKernel) -> str:
    """JSON text, indented; the fields are those of `ExplainedKernel`."""
    return msgspec.json.format(msgspec.json.encode(kernel)).decode()


def print_explained(console: Console, kernel: ExplainedKernel) -> None:
    """What binds the kernel, a table of its terms, the causes behind them, and what became of the other one."""
    shape = f" at {kernel.shape}" if kernel.shape else ""
    _print(
        console,
        Text(f"{kernel.kernel}: {time_text(kernel.seconds)}{shape}, {kernel.source}", "bold"),
    )
    for sentence in kernel.sentences:
        _print(console, Text(sentence))
    if not kernel.sentences:
        nothing = (
            "Nothing is known of it beyond its recorded time."
            if kernel.source is Source.RECORDED
            else "Nothing tells what binds it: it was timed without counters."
        )
        _print(console, Text(nothing, "yellow"))
    if kernel.terms:
        console.print(_terms(kernel, MEANINGS if console.width >= ROOMY else None))
        _print(console, Text(kernel.doubt))
    elif kernel.busy:
        console.print(_busy(kernel))
    if kernel.causes:
        console.print(Text("Behind it", "bold"))
    for cause in kernel.causes:
        _print(console, Text(f"{cause.share:4.0%}  {cause.sentence}"))
    for flag in kernel.flags:
        _print(console, Text(f"! {flag}", "yellow"))
    if kernel.compared:
        _print(console, Text(f"Compared with {kernel.compared.against}", "bold"))
        for sentence in kernel.compared.sentences:
            _print(console, Text(sentence))


def _print(console: Console, text: Text) -> None:
    console.print(text, soft_wrap=True)


def _terms(kernel: ExplainedKernel, meanings: Mapping[str, str] | None) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("term", no_wrap=True, min_width=17)
    for heading in ("alone", "share", "time if halved", "time if free"):
        table.add_column(heading, justify="right", no_wrap=True, min_width=max(len(heading), 8))
    if meanings:
        table.add_column("what the GPU does in it", no_wrap=True, overflow="ellipsis")
    for term in (term for term in kernel.terms if term.share >= SMALLEST):
        table.add_row(
            Text(term.name),
            time_text(term.seconds),
            f"{term.share:.1%}",
            time_text(term.seconds_if_half),
            time_text(term.seconds_if_free),
            *([Text(meanings.get(term.name, ""), "dim")] if meanings else []),
        )
    return table


def _busy(kernel: ExplainedKernel) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("unit", no_wrap=True)
    for heading in ("busy", "of the time"):
        table.add_column(heading, justify="right", no_wrap=True, min_width=max(len(heading), 8))
    for time in kernel.busy:
        table.add_row(Text(time.name), time_text(time.seconds), f"{time.share:.1%}")
    return table
