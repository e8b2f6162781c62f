"""The suite's winners against PyTorch and against where they began: ratios of times with their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import geometric_mean

import msgspec
import numpy as np

from mctskernel.experiments.records.cluster_bootstrap import Interval, clustered_mean
from mctskernel.experiments.records.documents import Document, Section, Table, Text
from mctskernel.experiments.suites.rows import CeilingsRow, Row, TimesRow, latest
from mctskernel.report.resampling import ratio_of_medians

EAGER = "eager"
BEST = " best"
START = " start"
OURS = (BEST, START)

ALIKE = 0.02
"""A kernel whose output is further from PyTorch's than this share is marked: it may compute something else."""


class RatioRow(msgspec.Struct, frozen=True, kw_only=True):
    """A task: the faster of its languages' best kernels, in seconds, and the times of others over that one's.

    `start` is the starting kernel of the same language, `compiled` torch.compile with max-autotune, with CUDA graphs or
    without, whichever is faster. Ratios are geometric means over the search shapes, of medians of samples that were
    taken in turns; their intervals draw samples again. `floor_share` is the floor over the best time.
    `fastest` is `compiled` once more, of the least samples: what disturbs a machine only ever adds to them.
    `memory_bound`: the compulsory bytes set the floor, and not the arithmetic. None where nothing is known.
    """

    task: str
    problem: str = ""
    contender: str = ""
    best_seconds: float | None = None
    start: Interval | None = None
    eager: Interval | None = None
    compiled: Interval | None = None
    compiled_mode: str = ""
    fastest: float | None = None
    floor_share: float | None = None
    memory_bound: bool | None = None
    difference: float | None = None
    versions: dict[str, str] = {}


def ratio_rows(rows: Sequence[Row]) -> list[RatioRow]:
    """A row for each task that was timed in turns; of several timings of a task the last one holds."""
    times = {row.task: row for row in rows if isinstance(row, TimesRow)}
    _, _, ceilings = latest(rows)
    return [_ratio_row(row, ceilings) for _, row in sorted(times.items())]


def _ratio_row(row: TimesRow, ceilings: CeilingsRow | None) -> RatioRow:
    contenders = set.intersection(*(set(each) for each in row.seconds.values())) if row.seconds else set()
    best = min(
        (each for each in contenders if each.endswith(BEST)), key=lambda each: _median(row, each), default=""
    )
    if not best:
        return RatioRow(
            task=row.task, problem=row.problem or "No kernel of it was timed.", versions=row.versions
        )
    compiled = min(
        (each for each in contenders if each != EAGER and not each.endswith(OURS)),
        key=lambda each: _median(row, each),
        default="",
    )
    seconds = _median(row, best)
    return RatioRow(
        task=row.task,
        problem=row.problem,
        contender=best,
        best_seconds=seconds,
        start=_ratio(row, best.removesuffix(BEST) + START, best),
        eager=_ratio(row, EAGER, best),
        compiled=_ratio(row, compiled, best),
        compiled_mode=compiled,
        fastest=_least(row, compiled) / _least(row, best) if compiled else None,
        floor_share=row.floor_seconds(ceilings) / seconds if ceilings else None,
        memory_bound=row.is_memory_bound(ceilings) if ceilings else None,
        difference=row.differences.get(best),
        versions=row.versions,
    )


def _median(row: TimesRow, contender: str) -> float:
    return geometric_mean(float(np.median(shape[contender])) for shape in row.seconds.values())


def _least(row: TimesRow, contender: str) -> float:
    return geometric_mean(min(shape[contender]) for shape in row.seconds.values())


def _ratio(row: TimesRow, other: str, best: str) -> Interval | None:
    if any(other not in shape for shape in row.seconds.values()):
        return None
    found = ratio_of_medians(
        [(np.array(shape[other]), np.array(shape[best])) for shape in row.seconds.values()]
    )
    return Interval(found.mean, found.low, found.high)


def geometric_means(rows: Sequence[RatioRow]) -> dict[str, Interval]:
    """The geometric mean of the ratios against each of the others; the interval draws tasks again."""
    found = {}
    for name in _NAMES:
        if known := _known(rows, name):
            mean = clustered_mean([math.log(each) for each in known.values()], list(known))
            found[name] = Interval(*(math.exp(each) for each in (mean.mean, mean.low, mean.high)))
    return found


def without_largest(rows: Sequence[RatioRow], name: str) -> tuple[str, float] | None:
    """The task of the largest ratio against one of the others, and the mean without it; None for a single task."""
    known = _known(rows, name)
    if len(known) < 2:
        return None
    largest = max(known, key=lambda task: known[task])
    return largest, geometric_mean(ratio for task, ratio in known.items() if task != largest)


def _known(rows: Sequence[RatioRow], name: str) -> dict[str, float]:
    return {row.task: _point(ratio) for row in rows if (ratio := getattr(row, name)) is not None}


def _point(ratio: Interval | float) -> float:
    return ratio.mean if isinstance(ratio, Interval) else ratio


def document(rows: Sequence[RatioRow]) -> Document:
    """The page."""
    timed = [row for row in rows if row.best_seconds is not None]
    columns = [
        "task",
        "best",
        "us",
        "start / best",
        "eager / best",
        "torch.compile / best",
        "fastest samples",
        "mode",
        "floor",
        "bound by",
    ]
    table = Table(columns, [_cells(row) for row in timed])
    means = []
    groups = (
        ("memory-bound", [row for row in timed if row.memory_bound]),
        ("all", timed),
    )
    for title, group in groups:
        for name, ratio in geometric_means(group).items():
            left = without_largest(group, name)
            without = f"{left[1]:.3f} ({left[0]})" if left else ""
            means.append([f"{title}, {len(group)} tasks: {_NAMES[name]}", _interval(ratio), without])
    problems = [f"- {row.task}: {row.problem}" for row in rows if row.problem]
    far = [row for row in timed if row.difference is not None and row.difference > ALIKE]
    problems += [
        f"- {row.task}: the output of the {row.contender} is {row.difference:.1%} from PyTorch's."
        for row in far
    ]
    sections = [
        Section("Ratios of times", [table, Text(_READING)]),
        Section("Geometric means", [Table(["", "ratio", "without the largest"], means)]),
    ]
    if problems:
        sections.append(Section("What went wrong", [Text("\n".join(problems))]))
    machine = next((row.versions for row in timed if row.versions), {})
    lead = Text(", ".join(f"{name} {value}" for name, value in machine.items()))
    return Document("The suite's winners in turns with PyTorch", sections, [lead] if machine else [])


_NAMES = {
    "start": "start / best",
    "eager": "eager / best",
    "compiled": "torch.compile / best",
    "fastest": "torch.compile / best, fastest samples",
}

_READING = (
    "More than 1: the best kernel is faster. All contenders of a task took turns in one process, on the same tensors, "
    "the L2 cache flushed before every run. Intervals are of 95 %: of a ratio from drawing its samples again, of a "
    "mean from drawing tasks. Start: the starting kernel of the same language. torch.compile: max-autotune, with CUDA "
    "graphs or without, whichever is faster; once more of the least sample of each, because a host that launches late "
    "only ever adds to a time. Floor: the least that the task's bytes or its arithmetic take on this "
    "GPU, over the best time; a task is memory-bound where the bytes take longer."
)


def _cells(row: RatioRow) -> list[str]:
    bounds = {True: "bytes", False: "arithmetic", None: ""}
    return [
        row.task,
        row.contender.removesuffix(BEST),
        f"{row.best_seconds * 1e6:.1f}" if row.best_seconds is not None else "",
        *(_interval(ratio) if ratio is not None else "" for ratio in (row.start, row.eager, row.compiled)),
        f"{row.fastest:.3f}" if row.fastest is not None else "",
        row.compiled_mode,
        f"{row.floor_share:.0%}" if row.floor_share is not None else "",
        bounds[row.memory_bound],
    ]


def _interval(ratio: Interval) -> str:
    return f"{ratio.mean:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
