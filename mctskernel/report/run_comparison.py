"""Runs side by side: which kernel is faster, and whether one way to search is better.

Times are compared on one task and one device alone. The two questions are kept apart. Which of two *kernels* is faster
the samples of their timings tell. Which of two *ways to search* is better only several searches of each tell: they are
paired by task and seed, and compared after the same number of evaluations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from mctskernel.core.task import Array
from mctskernel.profiling.guardrails import NOISE
from mctskernel.report.compared_run import (
    BOOTSTRAP,
    EXACT,
    VERSIONS,
    ComparedRun,
    Ground,
    RunRow,
    best_ratio,
    run_row,
)
from mctskernel.report.progress import best_after
from mctskernel.report.resampling import Estimate, estimate, holm, sign_flip_p

FEWEST = 5
"""Pairs, or tasks, from which on there is an interval and a test: of fewer, no outcome would be unlikely enough."""


MOST_NAMES = 3
"""Runs that a remark names."""


@dataclass(frozen=True)
class KernelRatio:
    """The time of the first run's best kernel over that of the second's, its interval and how that was made.

    `differs` says whether that is more than is known of it.
    """

    first: str
    second: str
    ratio: float
    low: float
    high: float
    interval: str
    differs: bool


@dataclass(frozen=True)
class SideRow:
    """The runs of a side on one task and device: the geometric mean of their best speed-ups after `at` evaluations.

    `low` and `high` are its bootstrap interval over runs, None of fewer than `FEWEST`. `runs` are those with a success.
    """

    side: str
    task: str
    device: str
    runs: int
    at: int
    speedup: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class SearchTest:
    """The first side's times over the second's, the geometric mean over pairs, after the same number of evaluations.

    `unit` is what is drawn again and whose sign is flipped: pairs, or tasks where there are `FEWEST` and more. Of fewer
    units than that there is neither interval nor p-value. `adjusted_p` is Holm's, for all sides that were compared with
    the first one. The second side was ahead in `better` of the pairs, and behind in `worse`.
    """

    first: str
    second: str
    pairs: int
    tasks: int
    unit: str
    ratio: float
    low: float | None
    high: float | None
    p: float | None
    adjusted_p: float | None
    better: int
    worse: int


@dataclass(frozen=True)
class RunComparison:
    """Everything that can be said of some runs beside each other and, in `remarks`, what can't, and why."""

    runs: tuple[RunRow, ...]
    sides: tuple[SideRow, ...]
    kernels: tuple[KernelRatio, ...]
    searches: tuple[SearchTest, ...]
    remarks: tuple[str, ...]
    schema: str = "mctskernel.comparison"
    schema_version: int = 1


def compare_runs(runs: Sequence[ComparedRun], at: int | None = None) -> RunComparison:
    """The runs side by side. The best so far is told after `at` evaluations.

    Without it, after as many as every run has made of the same task on the same device. Raises JournalError.
    """
    grounds: dict[Ground, list[ComparedRun]] = {}
    sides: dict[str, list[ComparedRun]] = {}
    for run in runs:
        grounds.setdefault(run.ground, []).append(run)
        sides.setdefault(run.side, []).append(run)
    common = {ground: at or min(run.view.evaluations for run in each) for ground, each in grounds.items()}
    first, *others = sides.values()
    tests = [test for other in others if (test := _test(first, other, at)) is not None]
    return RunComparison(
        runs=tuple(run_row(run, common[run.ground]) for run in runs),
        sides=tuple(_side_rows(grounds.values(), common)),
        kernels=tuple(_kernels(grounds.values())),
        searches=tuple(_adjusted(tests)),
        remarks=tuple(dict.fromkeys(_remarks(sides, tests))),
    )


def _side_rows(grounds: Iterable[list[ComparedRun]], common: Mapping[Ground, int]) -> Iterator[SideRow]:
    for runs in grounds:
        at = common[runs[0].ground]
        for side in dict.fromkeys(run.side for run in runs):
            of_side = [run for run in runs if run.side == side]
            logs = [math.log(best) for run in of_side if (best := best_after(run.moments, at))]
            if not logs or len(of_side) < 2:
                continue
            found = estimate([np.array(logs)])
            enough = len(logs) >= FEWEST
            yield SideRow(
                side=side,
                task=of_side[0].view.manifest.configuration.task,
                device=of_side[0].device,
                runs=len(logs),
                at=at,
                speedup=math.exp(found.mean),
                low=math.exp(found.low) if enough else None,
                high=math.exp(found.high) if enough else None,
            )


def _kernels(grounds: Iterable[list[ComparedRun]]) -> Iterator[KernelRatio]:
    """The best kernels of the first run of each ground against those of the others, where each is a side of its own."""
    for first, *others in grounds:
        if len({run.side for run in (first, *others)}) <= len(others):
            continue
        for other in others:
            if (found := best_ratio(first, other)) is not None:
                beyond = found.low > 1 or found.high < 1
                if found.interval == BOOTSTRAP:
                    # Runs are timed at different hours, whose medians differ by more than samples tell.
                    beyond &= abs(math.log(found.ratio)) > math.log1p(NOISE)
                elif found.interval == EXACT:
                    beyond = found.ratio != 1
                yield KernelRatio(
                    first.name, other.name, found.ratio, found.low, found.high, found.interval, beyond
                )


@dataclass(frozen=True)
class _Pair:
    """Runs of two sides on the same ground with the same seed: log of the first's time over the second's."""

    ground: Ground
    log_ratio: float


def _test(first: Sequence[ComparedRun], second: Sequence[ComparedRun], at: int | None) -> SearchTest | None:
    pairs = list(_pairs(first, second, at))
    by_ground: dict[Ground, list[float]] = {}
    for pair in pairs:
        by_ground.setdefault(pair.ground, []).append(pair.log_ratio)
    if len(pairs) < 2:
        return None
    groups: list[Array] = [np.array(each) for each in by_ground.values()]
    unit = "pairs"
    if len(groups) >= FEWEST:
        unit, groups = "tasks", [np.array([float(each.mean()) for each in groups])]
    units = np.concatenate(groups)
    found: Estimate | None = None
    if len(units) >= FEWEST and min(map(len, groups)) > 1:
        found = estimate(groups)
    logs = [pair.log_ratio for pair in pairs]
    mean = found.mean if found else float(np.mean([each.mean() for each in groups]))
    return SearchTest(
        first=first[0].side,
        second=second[0].side,
        pairs=len(pairs),
        tasks=len(by_ground),
        unit=unit,
        ratio=math.exp(mean),
        low=math.exp(found.low) if found else None,
        high=math.exp(found.high) if found else None,
        p=sign_flip_p(units) if len(units) >= FEWEST else None,
        adjusted_p=None,
        better=sum(each > 0 for each in logs),
        worse=sum(each < 0 for each in logs),
    )


def _pairs(first: Sequence[ComparedRun], second: Sequence[ComparedRun], at: int | None) -> Iterator[_Pair]:
    """Of the same seed and ground, after as many evaluations as both have made; seeds that one side has twice, not."""
    ours, theirs = _by_seed(first), _by_seed(second)
    for key in ours.keys() & theirs.keys():
        one, other = ours[key], theirs[key]
        count = at or min(one.view.evaluations, other.view.evaluations)
        before, after = one.seconds_after(count), other.seconds_after(count)
        if before is not None and after is not None:
            yield _Pair(one.ground, math.log(before / after))


def _by_seed(runs: Sequence[ComparedRun]) -> Mapping[tuple[Ground, int], ComparedRun]:
    found: dict[tuple[Ground, int], list[ComparedRun]] = {}
    for run in runs:
        found.setdefault((run.ground, run.seed), []).append(run)
    return {key: each[0] for key, each in found.items() if len(each) == 1}


def _adjusted(tests: Sequence[SearchTest]) -> list[SearchTest]:
    known = [test.p for test in tests if test.p is not None]
    adjusted = iter(holm(known))
    return [replace(test, adjusted_p=next(adjusted)) if test.p is not None else test for test in tests]


def _remarks(sides: Mapping[str, list[ComparedRun]], tests: Sequence[SearchTest]) -> Iterator[str]:
    tested = {test.second for test in tests}
    runs = [run for each in sides.values() for run in each]
    if idle := [run.name for run in runs if run.best is None]:
        yield f"{_listed(idle)}: no kernel yet whose time is believed."
    if unfinished := [run.name for run in runs if run.best is not None and run.view.answer is None]:
        yield (
            f"{_listed(unfinished)}: no answer, because the search goes on or was cut off. Figures are those so far."
        )
    first, *others = sides.values()
    for other in others:
        yield from _differences(first, other)
        if other[0].side not in tested and max(len(first), len(other)) > 1:
            yield (
                f"{first[0].side} and {other[0].side} have fewer than two searches of the same task, device and seed: "
                "no test pairs them."
            )
    starts = {run.ground: run for run in reversed(runs)}
    for run in runs:
        reference = starts[run.ground]
        if run.best and reference.best and run.starting_kernel != reference.starting_kernel:
            yield (
                f"{run.name} and {reference.name} began at different starting kernels: their speed-ups are over "
                "different times. Compare the times."
            )
    for test in tests:
        if test.p is None:
            yield (
                f"{test.pairs} pairs of {test.first} and {test.second} are too few for a test: whatever came of them, "
                f"chance alone would do as much with a probability of {2.0 ** (1 - test.pairs):.2g}. "
                f"{FEWEST} and more are tested."
            )


def _differences(first: Sequence[ComparedRun], second: Sequence[ComparedRun]) -> Iterator[str]:
    """Why nothing, or less, of two sides is compared."""
    shared = {run.ground for run in first} & {run.ground for run in second}
    if shared:
        yield from _other_versions(first, second)
        return
    one, other = first[0], second[0]
    if {run.ground.task for run in first} & {run.ground.task for run in second}:
        yield (
            f"{one.side} was timed on {one.device} and {other.side} on {other.device}: times of different devices "
            f"are not compared. `mctskernel measure RUN` judges the kernels of a run on this machine's GPU."
        )
        return
    tasks = (one.view.manifest.configuration.task, other.view.manifest.configuration.task)
    which = f"{tasks[0]} and {tasks[1]}" if tasks[0] != tasks[1] else f"other versions of {tasks[0]}"
    yield f"{one.side} and {other.side} searched {which}: times of different tasks are not compared."


def _other_versions(first: Sequence[ComparedRun], second: Sequence[ComparedRun]) -> Iterator[str]:
    for one, other in combinations((first[0], second[0]), 2):
        before, after = one.view.manifest.fingerprint, other.view.manifest.fingerprint
        for name in sorted(VERSIONS & (before.keys() | after.keys())):
            if before.get(name) != after.get(name):
                yield (
                    f"{one.side} was made with {name} {before.get(name, 'unknown')}, {other.side} with "
                    f"{after.get(name, 'unknown')}: what differs may come of that."
                )


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {rest} more" if rest > 0 else "")
