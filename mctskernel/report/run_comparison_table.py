"""Runs side by side in the terminal and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mctskernel.profiling.quantities import time_text
from mctskernel.report.compared_run import BOOTSTRAP, EXACT, ONE_SIGMA, RunRow
from mctskernel.report.run_comparison import KernelRatio, RunComparison, SearchTest, SideRow

SIGNIFICANT = 0.05


def to_json(comparison: RunComparison) -> str:
    """JSON text, indented; the fields are those of `RunComparison`."""
    return msgspec.json.format(msgspec.json.encode(comparison)).decode()


def print_run_comparison(console: Console, comparison: RunComparison) -> None:
    """A table for each task and device, then what can be said of kernels and of searches, and what can't."""
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
    for side in comparison.sides:
        console.print(Text(side_sentence(side)), soft_wrap=True)
    for interval in dict.fromkeys(row.interval for row in comparison.runs if row.interval not in ("", EXACT)):
        console.print(Text(f"Brackets: {interval}.", "dim"), soft_wrap=True)
    for sentence in (*map(kernel_sentence, comparison.kernels), *map(search_sentence, comparison.searches)):
        console.print(Text(sentence), soft_wrap=True)
    for remark in comparison.remarks:
        console.print(Text(remark, "yellow"), soft_wrap=True)


def short_names(paths: Sequence[str]) -> dict[str, str]:
    """Paths without the folder that all of them are in."""
    parts = [Path(path).parts for path in paths]
    shared = 0
    while all(len(each) > shared + 1 and each[shared] == parts[0][shared] for each in parts):
        shared += 1
    return {path: str(Path(*each[shared:])) for path, each in zip(paths, parts, strict=True)}


def side_sentence(side: SideRow) -> str:
    """What the runs of a side came to on average."""
    bounds = f" ({side.low:.2f} to {side.high:.2f})" if side.low is not None else ""
    return (
        f"{side.side}: {side.speedup:.2f}x{bounds} on {side.task} after {side.at} evaluations, the geometric mean of "
        f"{side.runs} runs."
    )


def kernel_sentence(found: KernelRatio) -> str:
    """Which of two kernels is faster, by how much, and how that is known."""
    how = {
        BOOTSTRAP: f" ({found.low:.3f} to {found.high:.3f}, {BOOTSTRAP})",
        ONE_SIGMA: f" (modelled; {found.low:.2f} to {found.high:.2f} within {ONE_SIGMA})",
        EXACT: " (as recorded, without an interval)",
    }[found.interval]
    figure = (
        f"the time of the best kernel of {found.first} is {found.ratio:.3f} of that of {found.second}{how}"
    )
    if not found.differs:
        return f"Kernels: {figure}: no difference that can be told from noise."
    faster = found.second if found.ratio > 1 else found.first
    return f"Kernels: {figure}: {faster} has the faster kernel."


def search_sentence(found: SearchTest) -> str:
    """Which of two ways to search came to faster kernels, and how sure that is."""
    over = f"{found.pairs} pairs of the same task and seed" + (
        f", {found.tasks} tasks" if found.tasks > 1 else ""
    )
    bounds = f" ({found.low:.3f} to {found.high:.3f})" if found.low is not None else ""
    figure = (
        f"Searches: over {over}, times of {found.first} are {found.ratio:.3f}{bounds} of those of {found.second} after "
        f"the same number of evaluations; {found.second} is ahead in {found.better}, behind in {found.worse}."
    )
    p = found.adjusted_p
    if p is None:
        return figure
    verdict = "a difference" if p < SIGNIFICANT else "no difference that can be told from chance"
    before = f" ({found.p:.3g} before Holm's correction)" if p != found.p else ""
    return f"{figure} Sign-flip test over {found.unit}: p = {p:.3g}{before}, {verdict}."


def _table(rows: Sequence[RunRow], names: Mapping[str, str]) -> Table:
    table = Table(box=None, pad_edge=False)
    paid = any(row.dollars for row in rows)
    held_out = any(row.held_out_speedup for row in rows)
    table.add_column("run", overflow="fold", min_width=8)
    headings = ("time", "speed-up", f"after {rows[0].at}", *(("held out",) if held_out else ()))
    for heading in (*headings, "evals", "failed", "s", *(("$",) if paid else ())):
        table.add_column(heading, justify="right", no_wrap=heading != "speed-up", min_width=len(heading))
    for row in rows:
        table.add_row(
            Text(names[row.path]),
            time_text(row.best_seconds) if row.best_seconds is not None else "",
            _speedup(row),
            _times(row.speedup_at),
            *((_times(row.held_out_speedup),) if held_out else ()),
            str(row.evaluations),
            str(row.failures),
            f"{row.seconds:.0f}",
            *((f"{row.dollars:.4f}",) if paid else ()),
        )
    return table


def _speedup(row: RunRow) -> str:
    if row.speedup is None or row.low is None or row.high is None or row.interval == EXACT:
        return _times(row.speedup)
    return f"{row.speedup:.2f}x [{row.low:.2f}, {row.high:.2f}]"


def _times(speedup: float | None) -> str:
    return "" if speedup is None else f"{speedup:.2f}x"
