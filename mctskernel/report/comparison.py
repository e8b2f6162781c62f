"""Two runs over the same kernels, side by side: the times of one device against those of another."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mctskernel.core.evaluation import Evaluation
from mctskernel.core.task import Array
from mctskernel.profiling.quantities import time_text
from mctskernel.report.view import View
from mctskernel.tree.node import Node, Tree
from mctskernel.tree.trajectory import edit_title, run_seconds

FEWEST_FOR_A_RANKING = 3
"""Two kernels are ranked alike half of the time by any model."""


@dataclass(frozen=True)
class Row:
    """A kernel of both runs: its nodes, the edit that made it, and seconds of one run, None where it has no time.

    `remark` says why the later run has no time that is believed.
    """

    before: int
    after: int
    depth: int
    title: str
    seconds_before: float | None
    seconds_after: float | None
    remark: str

    @property
    def ratio(self) -> float | None:
        """The later time over the earlier one."""
        if self.seconds_before is None or self.seconds_after is None:
            return None
        return self.seconds_after / self.seconds_before


def compare(before: Tree, after: Tree) -> tuple[Row, ...]:
    """The kernels of the later tree that the earlier one has as well, children below their parents."""
    known = {node.kernel.source: node for node in before.nodes}
    pairs = ((known.get(node.kernel.source), node) for node in _parents_first(after, 0))
    return tuple(_row(after, old, new) for old, new in pairs if old is not None)


def rank_correlation(first: Array, second: Array) -> float:
    """Spearman's rank correlation; ties share their mean rank. NaN where it is undefined.

    It is the correlation of the ranks (Spearman 1904), so it is undefined when either side is constant.
    """
    if len(first) < FEWEST_FOR_A_RANKING or not np.ptp(first) or not np.ptp(second):
        return math.nan
    return float(np.corrcoef(_ranks(first), _ranks(second))[0, 1])


def print_comparison(console: Console, before: View, after: View) -> None:
    """A table of both times by kernel, the tree's shape kept, and how well the two devices agree on the order."""
    rows = compare(before.tree, after.tree)
    table = Table(box=None, pad_edge=False)
    table.add_column("node", justify="right")
    table.add_column("was", justify="right")
    table.add_column("edit path")
    for view in (before, after):
        table.add_column(Text(_device(view)), justify="right")
    table.add_column("ratio", justify="right")
    for row in rows:
        table.add_row(
            str(row.after),
            str(row.before),
            Text("  " * row.depth + row.title),
            time_text(row.seconds_before) if row.seconds_before is not None else "",
            Text(time_text(row.seconds_after) if row.seconds_after is not None else row.remark),
            f"{row.ratio:.2f}" if row.ratio is not None else "",
        )
    console.print(table)
    console.print(Text(_agreement(rows)))


def _parents_first(tree: Tree, node: int) -> Iterator[Node]:
    waiting = [node] if tree.nodes else []
    while waiting:
        number = waiting.pop()
        yield tree.nodes[number]
        waiting.extend(reversed(tree.children_of(number)))


def _row(after: Tree, old: Node, new: Node) -> Row:
    return Row(
        before=old.id,
        after=new.id,
        depth=new.depth,
        title=edit_title(after, new),
        seconds_before=_believed_seconds(old.evaluation),
        seconds_after=_believed_seconds(new.evaluation),
        remark=_remark(new.evaluation),
    )


def _believed_seconds(evaluation: Evaluation | None) -> float | None:
    if evaluation is None or not evaluation.ok or evaluation.quarantine:
        return None
    return run_seconds(evaluation)


def _remark(evaluation: Evaluation | None) -> str:
    if evaluation is None:
        return "not finished"
    return "quarantined" if evaluation.quarantine else str(evaluation.outcome)


def _device(view: View) -> str:
    source = next((node.evaluation.source for node in view.tree.nodes if node.evaluation), "")
    return f"{source}\n{view.manifest.fingerprint.get('gpu', 'unknown GPU').removeprefix('NVIDIA ')}"


def _agreement(rows: tuple[Row, ...]) -> str:
    pairs = [
        (row.seconds_before, row.seconds_after) for row in rows if row.seconds_before and row.seconds_after
    ]
    times = np.array(pairs, dtype=float).reshape(-1, 2)
    correlation = rank_correlation(times[:, 0], times[:, 1])
    if math.isnan(correlation):
        return f"{len(pairs)} kernel(s) with both times: too few, or too alike, for a rank correlation."
    return f"Rank correlation (Spearman) of {len(pairs)} kernels: {correlation:.3f}"


def _ranks(values: Array) -> Array:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2.0)[inverse])
