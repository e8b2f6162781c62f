"""Why a kernel takes as long as it does, and how it compares with another one: for the terminal and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mctskernel.core.evaluation import Cause, Evaluation, Source
from mctskernel.core.quantities import time_text
from mctskernel.profiling.changes import Comparison, compare
from mctskernel.profiling.diagnosis import BusyTime, account, busy_times
from mctskernel.profiling.model.explanation import MEANINGS, ExplainedTerm, doubt, explain

ROOMY = 100  # columns of a terminal that is wide enough to describe each term
SMALLEST = 0.001  # terms below this fraction of the time are left out


@dataclass(frozen=True)
class ComparedKernel:
    """The comparison with the kernel called `against`."""

    against: str
    is_tie: bool
    sentences: tuple[str, ...]
    comparison: Comparison


@dataclass(frozen=True)
class ExplainedKernel:
    """Why a kernel takes `seconds` at `shape`, the first search shape.

    `low` and `high` are one standard deviation of a modelled time, or the interval of a measured median. `terms` are
    there for a modelled time, `busy` for a kernel that was measured with counters.
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
    """Explain a timed evaluation, and compare it with the evaluation `before` if there is one."""
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


def print_explained(console: Console, kernel: ExplainedKernel) -> None:
    """Print what limits the kernel, a table of its terms, the causes, and the comparison."""
    shape = f" at {kernel.shape}" if kernel.shape else ""
    _print(console, Text(f"{kernel.kernel}: {time_text(kernel.seconds)}{shape}, {kernel.source}", "bold"))
    for sentence in kernel.sentences:
        _print(console, Text(sentence))
    if not kernel.sentences:
        nothing = (
            "Only its recorded time is known."
            if kernel.source is Source.RECORDED
            else "It was timed without counters, so what limits it is unknown."
        )
        _print(console, Text(nothing, "yellow"))
    if kernel.terms:
        console.print(_terms(kernel, MEANINGS if console.width >= ROOMY else None))
        _print(console, Text(kernel.doubt))
    elif kernel.busy:
        console.print(_busy(kernel))
    if kernel.causes:
        console.print(Text("Causes", "bold"))
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
    table = _table("term", "alone", "share", "time if halved", "time if free")
    if meanings:
        table.add_column("what it is")
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
    table = _table("unit", "busy", "of the time")
    for time in kernel.busy:
        table.add_row(Text(time.name), time_text(time.seconds), f"{time.share:.1%}")
    return table


def _table(first: str, *headings: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first, no_wrap=True, min_width=17)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True, min_width=max(len(heading), 8))
    return table
