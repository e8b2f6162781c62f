"""The gauntlet's table: for the terminal, and as Markdown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mctskernel.gauntlet.run import Report, Result, Verdict

HEADINGS = ("entry", "on", "trick", "refused by", "at", "outcome", "")


def print_report(console: Console, report: Report) -> None:
    """The table, then what went wrong in full, then the totals."""
    table = Table(box=None, pad_edge=False)
    for heading in HEADINGS:
        table.add_column(heading, overflow="fold")
    for result in report.results:
        style = "" if result.fine else "bold red"
        table.add_row(*(escape(cell) for cell in _cells(result)), style=style)
    console.print(table)
    for result in report.results:
        if not result.fine:
            console.print(f"{result.label}: {result.verdict}. {result.message}", style="red", markup=False)
    for sentence in totals(report):
        console.print(sentence, markup=False)


def markdown(report: Report) -> str:
    """The table and its totals as a Markdown document."""
    lines = ["# The gauntlet", "", *totals(report), ""]
    lines += [f"| {' | '.join(HEADINGS)} |", f"|{'---|' * len(HEADINGS)}"]
    lines += [f"| {' | '.join(_cell(cell) for cell in _cells(result))} |" for result in report.results]
    for device, fingerprint in report.fingerprints.items():
        known = ", ".join(f"{name} {value}" for name, value in fingerprint.items())
        lines += ["", f"The {device}: {known}."]
    return "\n".join(lines) + "\n"


def totals(report: Report) -> Iterator[str]:
    """How many came to what, in sentences."""
    cheats = Counter(result.verdict for result in report.results if not result.honest)
    honest = Counter(result.verdict for result in report.results if result.honest)
    yield (
        f"{cheats[Verdict.CAUGHT]} of {cheats.total()} cheats caught, {honest[Verdict.WRONGLY_REFUSED]} of "
        f"{honest.total()} honest kernels refused, in {report.seconds:.0f} s."
    )
    guards = Counter(result.guard for result in report.results if result.verdict is Verdict.CAUGHT)
    if guards:
        counts = ", ".join(f"{count} by {guard or 'no guard'}" for guard, count in guards.most_common())
        yield f"Caught: {counts}."
    unexpected = [result.label for result in report.results if result.unexpected]
    if unexpected:
        yield f"Caught by another guard than was expected: {', '.join(unexpected)}."
    broken = (cheats + honest)[Verdict.NOT_JUDGED]
    if broken:
        yield f"{broken} could not be judged."
    if report.skipped:
        yield f"{len(report.skipped)} can't be shown here."


def _cells(result: Result) -> tuple[str, ...]:
    verdict = str(result.verdict)
    if result.verdict is Verdict.LET_THROUGH and result.log_gain is not None:
        verdict += f" ({math.exp(result.log_gain):.2f}x)"
    refused_by = f"{result.guard or ''}{' (unexpected)' if result.unexpected else ''}"
    return (result.label, result.device, result.text, refused_by, result.gate, result.outcome, verdict)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
