"""Comparisons in the terminal and as JSON: of runs, and of one run's kernels on two devices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mctskernel.core.evaluation import Source
from mctskernel.profiling.quantities import speedup_text, time_text
from mctskernel.profiling.reward import is_eligible
from mctskernel.report.comparison import EXACT, ONE_SIGMA, RunComparison, RunRow
from mctskernel.report.notes import counted
from mctskernel.report.resampling import rank_correlation
from mctskernel.report.view import View
from mctskernel.tree.node import Tree
from mctskernel.tree.trajectory import edit_title, run_seconds


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


@dataclass(frozen=True)
class KernelRow:
    """A kernel of two runs: its node in each, its edit, and its seconds, None where it has no trusted time.

    `state` says why the later run has no time.
    """

    before: int
    after: int
    depth: int
    title: str
    seconds_before: float | None
    seconds_after: float | None
    state: str

    @property
    def ratio(self) -> float | None:
        """The later time over the earlier one."""
        if self.seconds_before is None or self.seconds_after is None:
            return None
        return self.seconds_after / self.seconds_before


def compare_kernels(before: Tree, after: Tree) -> tuple[KernelRow, ...]:
    """The kernels of the later tree that the earlier one has as well, children below their parents."""
    known = {node.kernel.source: node for node in before.nodes}
    found, waiting = [], [0] if after.nodes else []
    while waiting:
        new = after.nodes[waiting.pop()]
        waiting.extend(reversed(new.children))
        if (old := known.get(new.kernel.source)) is None:
            continue
        evaluation = new.evaluation
        state = "not finished" if evaluation is None else str(evaluation.outcome)
        state = "quarantined" if evaluation is not None and evaluation.quarantine else state
        was, now = (
            run_seconds(each) if each and is_eligible(each) else None for each in (old.evaluation, evaluation)
        )
        found.append(KernelRow(old.id, new.id, new.depth, edit_title(after, new), was, now, state))
    return tuple(found)


def print_comparison(console: Console, before: View, after: View) -> None:
    """Print both times of each kernel as a tree, and the rank correlation of the two devices."""
    rows = compare_kernels(before.tree, after.tree)
    table = Table(box=None, pad_edge=False)
    for heading in ("node", "was"):
        table.add_column(heading, justify="right")
    table.add_column("edit path")
    for heading in (_device(before), _device(after), "ratio"):
        table.add_column(Text(heading), justify="right")
    for row in rows:
        table.add_row(
            str(row.after),
            str(row.before),
            Text("  " * row.depth + row.title),
            time_text(row.seconds_before) if row.seconds_before is not None else "",
            Text(time_text(row.seconds_after) if row.seconds_after is not None else row.state),
            f"{row.ratio:.2f}" if row.ratio is not None else "",
        )
    console.print(table)
    pairs = [(each.seconds_before, each.seconds_after) for each in rows if each.ratio is not None]
    times, kernels = np.array(pairs, dtype=float).reshape(-1, 2), counted(len(pairs), "kernel")
    correlation = rank_correlation(times[:, 0], times[:, 1])
    if math.isnan(correlation):
        console.print(Text(f"{kernels} with both times: too few, or too alike, for a rank correlation."))
    else:
        console.print(Text(f"Rank correlation (Spearman) of {kernels}: {correlation:.3f}"))


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


def _device(view: View) -> str:
    source = next((node.evaluation.source for node in view.tree.nodes if node.evaluation), "")
    return f"{source}\n{view.manifest.fingerprint.get('gpu', 'unknown GPU').removeprefix('NVIDIA ')}"
