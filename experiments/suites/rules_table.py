"""The suite's tasks searched again with newer rules, beside their earlier rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from mctskernel.core.kernel import Language
from mctskernel.experiments.suites.table import TableRow

SHOWN = 3
"""Edits on the way that are told."""

TWICE = 2.0

Key = tuple[str, Language]


def rules_page(rows: Sequence[TableRow], before: Sequence[TableRow]) -> str:
    """The page of rows that came later than `before`, as Markdown."""
    earlier = {(row.task, row.language): row for row in before}
    lines = [
        "# Rules before and after",
        "",
        "Tasks of the suite searched again on an H100 with the rules as they were then, for fewer evaluations: "
        "`before` is the search of [suite_h100.md](suite_h100.md), `now` the one of these rows.",
        "",
        "| task | language | start, us | before, us | now, us | before | now | evaluations | edits on the way |",
        "|" + "---|" * 9,
        *(_line(row, earlier[row.task, row.language]) for row in rows),
        "",
        *_summary({**earlier}, rows),
    ]
    return "\n".join(lines) + "\n"


def _line(row: TableRow, before: TableRow) -> str:
    path = "; ".join(row.path[:SHOWN]) + ("; ..." if len(row.path) > SHOWN else "")
    cells = (
        row.task,
        row.language.value,
        _us(row.start_seconds),
        _us(before.best_seconds),
        _us(row.best_seconds),
        f"{before.speedup or 0.0:.2f}x",
        f"{row.speedup or 0.0:.2f}x",
        str(row.evaluations),
        path,
    )
    return f"| {' | '.join(cells)} |"


def _summary(earlier: dict[Key, TableRow], rows: Sequence[TableRow]) -> list[str]:
    """What the CUDA C++ kernels of all tasks come to with the better of both searches."""
    before = {key: row.speedup or 1.0 for key, row in earlier.items() if key[1] is Language.CUDA}
    better = dict(before)
    for row in rows:
        if row.language is Language.CUDA:
            key = row.task, row.language
            better[key] = max(better.get(key, 0.0), row.speedup or 0.0)
    return [
        f"With the better of the two for each task, {_twice(better.values())} of {len(better)} CUDA tasks are at least "
        f"twice as fast as their starting kernels, with a geometric mean of {_geomean(better.values()):.1f} "
        f"({_twice(before.values())} and {_geomean(before.values()):.1f} before)."
    ]


def _twice(speedups: Iterable[float]) -> int:
    return sum(each >= TWICE for each in speedups)


def _geomean(speedups: Iterable[float]) -> float:
    logs = [math.log(each) for each in speedups]
    return math.exp(math.fsum(logs) / len(logs))


def _us(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e6:.1f}"
