"""Comparisons of runs in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mctskernel.core.evaluation import Source
from mctskernel.profiling.quantities import speedup_text, time_text
from mctskernel.report.comparison import EXACT, ONE_SIGMA, RunComparison, RunRow


def print_run_comparison(console: Console, comparison: RunComparison) -> None:
    """Print a table for each task and device, then the comparisons of kernels, and notes."""
    names = short_names([row.path for row in comparison.runs])
    grounds: dict[tuple[str, str], list[RunRow]] = {}
    for row in comparison.runs:
        grounds.setdefault((row.task, row.device), []).append(row)
    for (task, device), rows in grounds.items():
        console.print(Text.assemble((task, "bold"), f" on {device}"), soft_wrap=True)
        console.print(_table(rows, names))
        for row in rows:
            if row.best is not None:
                console.print(Text(f"Best of {names[row.path]}: node {row.best}, {row.edit}"), soft_wrap=True)
    for interval in dict.fromkeys(row.interval for row in comparison.runs if row.interval not in ("", EXACT)):
        console.print(Text(f"Brackets: {interval}.", "dim"), soft_wrap=True)
    for ratio in comparison.kernels:
        console.print(Text(ratio.sentence), soft_wrap=True)
    for note in comparison.notes:
        console.print(Text(note, "yellow"), soft_wrap=True)


def short_names(paths: Sequence[str]) -> dict[str, str]:
    """Paths without the folder that all of them are in."""
    parts = [Path(path).parts for path in paths]
    shared = 0
    while all(len(each) > shared + 1 and each[shared] == parts[0][shared] for each in parts):
        shared += 1
    return {path: str(Path(*each[shared:])) for path, each in zip(paths, parts, strict=True)}


def _table(rows: Sequence[RunRow], names: Mapping[str, str]) -> Table:
    table = Table(box=None, pad_edge=False)
    paid = any(row.dollars for row in rows)
    held_out = any(row.held_out_speedup for row in rows)
    table.add_column("run", overflow="fold", min_width=8)
    headings = ("time", "speed-up", *(("held out",) if held_out else ()))
    for heading in (*headings, "evals", "failed", "s", *(("$",) if paid else ())):
        table.add_column(heading, justify="right", no_wrap=heading != "speed-up", min_width=len(heading))
    for row in rows:
        table.add_row(
            Text(names[row.path]),
            time_text(row.best_seconds) if row.best_seconds is not None else "",
            _speedup(row),
            *((_times(row, row.held_out_speedup),) if held_out else ()),
            str(row.evaluations),
            str(row.failures),
            f"{row.seconds:.0f}",
            *((f"{row.dollars:.4f}",) if paid else ()),
        )
    return table


def _speedup(row: RunRow) -> str:
    if row.speedup is None or row.low is None or row.high is None or row.interval == EXACT:
        return _times(row, row.speedup)
    return f"{_times(row, row.speedup)} [{_times(row, row.low)}, {_times(row, row.high)}]"


def _times(row: RunRow, speedup: float | None) -> str:
    source = Source.MODELLED if row.interval == ONE_SIGMA else Source.MEASURED
    return "" if speedup is None else speedup_text(speedup, source)
