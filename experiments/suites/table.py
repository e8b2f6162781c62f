"""The suite's table: a line for each search, with PyTorch's times and the floor beside it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mctskernel.core.kernel import Language
from mctskernel.experiments.suites.rows import CeilingsRow, Row, SearchRow, TorchRow, latest


class TableRow(msgspec.Struct, frozen=True):
    """One search; times in seconds, shares from 0 to 1, None where nothing is known.

    No kernel takes less than `floor_seconds`: what a copy of the compulsory bytes takes, or the task's arithmetic at
    the GPU's rate where that is more. `floor_share` is the floor over the best time.
    """

    task: str
    language: Language
    device: str
    problem: str = ""
    start_seconds: float | None = None
    best_seconds: float | None = None
    speedup: float | None = None
    eager_seconds: float | None = None
    compiled_seconds: float | None = None
    floor_seconds: float | None = None
    floor_share: float | None = None
    evaluations: int | None = None
    candidate_seconds: float | None = None
    gpu_busy_share: float | None = None
    outcomes: dict[str, int] = {}
    path: list[str] = []
    fingerprint: dict[str, str] = {}


def table_rows(rows: Sequence[Row]) -> list[TableRow]:
    """The table, by task and language."""
    searches, torch, ceilings = latest(rows)
    return [
        _table_row(row, torch.get(row.task), ceilings)
        for _, row in sorted(searches.items(), key=lambda item: item[0])
    ]


def markdown_table(rows: Sequence[TableRow]) -> str:
    """The table as Markdown, with what went wrong below it."""
    headings = (
        "task",
        "language",
        "start, us",
        "best, us",
        "speed-up",
        "torch eager, us",
        "torch.compile, us",
        "floor, us",
        "share of the floor",
        "evaluations",
        "s a candidate",
        "GPU busy",
        "outcomes",
    )
    lines = ["# The suite", "", f"| {' | '.join(headings)} |", "|" + "---|" * len(headings)]
    lines += [f"| {' | '.join(_cells(row))} |" for row in rows if not row.problem]
    lines += [f"\n{row.task} in {row.language}: {row.problem}" for row in rows if row.problem]
    if known := [row.fingerprint for row in rows if row.fingerprint]:
        lines += ["", ", ".join(f"{name} {value}" for name, value in known[0].items())]
    return "\n".join(lines) + "\n"


def _table_row(row: SearchRow, torch: TorchRow | None, ceilings: CeilingsRow | None) -> TableRow:
    if row.summary is None or row.cost is None:
        return TableRow(row.task, row.language, row.device, row.problem)
    best = row.summary.best_seconds
    floor = row.floor_seconds(ceilings) if row.device == "gpu" and ceilings else None
    return TableRow(
        task=row.task,
        language=row.language,
        device=row.device,
        start_seconds=row.summary.start_seconds,
        best_seconds=best,
        speedup=row.summary.speedup,
        eager_seconds=torch.eager_seconds if torch else None,
        compiled_seconds=torch.compiled_seconds if torch else None,
        floor_seconds=floor,
        floor_share=floor / best if floor and best else None,
        evaluations=row.cost.evaluations,
        candidate_seconds=row.cost.candidate_seconds,
        gpu_busy_share=row.cost.gpu_busy_share if row.device == "gpu" else None,
        outcomes=row.summary.outcomes,
        path=row.summary.path,
        fingerprint=row.summary.fingerprint,
    )


def _cells(row: TableRow) -> list[str]:
    return [
        row.task,
        row.language,
        _microseconds(row.start_seconds),
        _microseconds(row.best_seconds),
        f"{row.speedup:.2f}x" if row.speedup is not None else "",
        _microseconds(row.eager_seconds),
        _microseconds(row.compiled_seconds),
        _microseconds(row.floor_seconds),
        _percent(row.floor_share),
        str(row.evaluations),
        f"{row.candidate_seconds:.2f}" if row.candidate_seconds is not None else "",
        _percent(row.gpu_busy_share),
        ", ".join(f"{count} {outcome}" for outcome, count in row.outcomes.items()),
    ]


def _microseconds(seconds: float | None) -> str:
    return f"{seconds * 1e6:.1f}" if seconds is not None else ""


def _percent(share: float | None) -> str:
    return f"{share:.0%}" if share is not None else ""
