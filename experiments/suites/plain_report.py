"""The plain suite's tables, made from its trials alone: how the arms did, then each kernel."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mctskernel.experiments.records.documents import Document, Section, Table, Text, markdown
from mctskernel.experiments.suites.plain_arms import ARMS
from mctskernel.experiments.suites.plain_trials import COUNTERS, PlainSuite, Trial
from mctskernel.report.resampling import estimate

FASTER = 1.1
"""A speed-up above this counts as a gain."""

COLUMNS = [
    "kernel",
    "naive, us",
    "best, us",
    "speed-up",
    "correct",
    "evaluations",
    "s of them",
    "bound by",
    "then by",
]


@dataclass(frozen=True)
class _Cell:
    """All trials of one arm on one task; times in seconds, None where no trial has one."""

    trials: tuple[Trial, ...]
    naive: float | None

    @property
    def correct(self) -> tuple[Trial, ...]:
        """Those with an answer."""
        return tuple(trial for trial in self.trials if trial.best_seconds is not None)

    @property
    def speedup(self) -> float | None:
        """The geometric mean over the correct ones."""
        found = [
            self.naive / trial.best_seconds for trial in self.correct if self.naive and trial.best_seconds
        ]
        return statistics.geometric_mean(found) if found else None

    @property
    def median(self) -> Trial | None:
        """The trial that is told of: the one in the middle by the time of its answer, the faster of two."""
        return statistics.median_low(_Timed(trial) for trial in self.correct).trial if self.correct else None


@dataclass(frozen=True)
class _Timed:
    """A trial by the time of its answer."""

    trial: Trial

    def __lt__(self, other: _Timed) -> bool:
        return (self.trial.best_seconds or 0.0) < (other.trial.best_seconds or 0.0)


def render(suite: PlainSuite) -> str:
    """The page as Markdown."""
    cells = _cells(suite)
    made = [arm for arm in suite.arms if any(cell.trials for cell in cells[arm].values())]
    lead = (
        f"{_plural(suite.seeds, 'seed')} and {_plural(suite.budget, 'evaluation')} a trial, on {_device(suite)}. A "
        "speed-up is over the naive kernel, the geometric mean over seeds. A trial is correct when its answer, which "
        "the naive kernel itself may be, passed the last gate at held-out shapes. Intervals are 95 % bootstrap "
        "intervals over kernels. Of each kernel the trial in the middle is told of."
    )
    sections = [Section("Arms", [_arms_table(suite, cells)])]
    sections.append(Section("Speed-ups", [_speedups_table(made, cells)]))
    sections += [Section(f"Each kernel: {arm}", [_kernels_table(cells[arm])]) for arm in made]
    sections.append(Section("Counters, best over naive", [_counters_table(made, cells)]))
    if problems := list(_problems(suite.trials)):
        sections.append(Section("What went wrong", [Text("\n".join(problems))]))
    sections.append(Section("Machine", [Text(_machine(suite))]))
    return markdown(Document("The plain suite", sections, [Text(lead)])) + "\n"


def without_gain(suite: PlainSuite) -> list[str]:
    """The tasks that no arm made faster by more than `FASTER`."""
    best: dict[str, float] = {}
    for column in _cells(suite).values():
        for task, cell in column.items():
            best[task] = max(best.get(task, 0.0), cell.speedup or 0.0)
    return [task for task, speedup in best.items() if speedup <= FASTER]


def _cells(suite: PlainSuite) -> dict[str, dict[str, _Cell]]:
    """By arm, then by task."""
    naive: dict[str, list[float]] = {}
    for trial in suite.trials:
        if trial.naive_seconds is not None:
            naive.setdefault(trial.task, []).append(trial.naive_seconds)
    times = {task: statistics.median(found) for task, found in naive.items()}
    tasks = sorted({trial.task for trial in suite.trials})
    return {
        arm: {
            task: _Cell(
                tuple(each for each in suite.trials if (each.arm, each.task) == (arm, task)), times.get(task)
            )
            for task in tasks
        }
        for arm in suite.arms
    }


def _arms_table(suite: PlainSuite, cells: Mapping[str, Mapping[str, _Cell]]) -> Table:
    columns = [
        "arm",
        "begins at",
        "correct",
        "speed-up",
        f"above {FASTER}x",
        "evaluations",
        "s of them",
        "calls",
        "$",
    ]
    rows = []
    for arm in suite.arms:
        trials = [trial for cell in cells[arm].values() for trial in cell.trials]
        if not trials:
            rows.append([arm, ARMS[arm].setting.value, "needs a model", *[""] * 6])
            continue
        found = [cell.speedup for cell in cells[arm].values() if cell.speedup]
        correct = sum(trial.best_seconds is not None for trial in trials)
        rows.append(
            [
                arm,
                ARMS[arm].setting.value,
                f"{correct} of {len(trials)}",
                _with_interval(found),
                f"{sum(speedup > FASTER for speedup in found)} of {len(cells[arm])}",
                str(sum(trial.evaluations for trial in trials)),
                f"{sum(trial.seconds for trial in trials):.0f}",
                str(sum(trial.calls for trial in trials)),
                f"{sum(trial.dollars for trial in trials):.2f}",
            ]
        )
    return Table(columns, rows)


def _speedups_table(arms: Sequence[str], cells: Mapping[str, Mapping[str, _Cell]]) -> Table:
    tasks = sorted({task for arm in arms for task in cells[arm]})
    rows = []
    for task in tasks:
        naive = next((cells[arm][task].naive for arm in arms), None)
        rows.append([task, _microseconds(naive), *(_times(cells[arm][task].speedup) for arm in arms)])
    means = [_times(_mean([cell.speedup for cell in cells[arm].values() if cell.speedup])) for arm in arms]
    return Table(["kernel", "naive, us", *arms], [*rows, ["geometric mean", "", *means]])


def _kernels_table(cells: Mapping[str, _Cell]) -> Table:
    rows = []
    for task, cell in cells.items():
        told = cell.median
        rows.append(
            [
                task,
                _microseconds(cell.naive),
                _microseconds(told.best_seconds if told else None),
                _times(cell.speedup),
                f"{len(cell.correct)} of {len(cell.trials)}",
                f"{_average([trial.evaluations for trial in cell.trials]):.0f}",
                f"{_average([trial.seconds for trial in cell.trials]):.1f}",
                told.before if told else "",
                told.after if told else "",
            ]
        )
    speedups = [cell.speedup for cell in cells.values() if cell.speedup]
    return Table(COLUMNS, [*rows, ["geometric mean", "", "", _times(_mean(speedups)), *[""] * 5]])


def _counters_table(arms: Sequence[str], cells: Mapping[str, Mapping[str, _Cell]]) -> Table:
    """The geometric means over tasks of a counter of the answer over that of the naive kernel, where both have some."""
    rows = []
    for name in COUNTERS:
        shown = []
        for arm in arms:
            pairs = [
                (trial.counters_before.get(name, 0.0), trial.counters_after.get(name, 0.0))
                for cell in cells[arm].values()
                if (trial := cell.median) is not None
            ]
            ratios = [after / before for before, after in pairs if before > 0 and after > 0]
            shown.append(f"{mean:.2f} ({len(ratios)})" if (mean := _mean(ratios)) else "")
        rows.append([name, *shown])
    return Table(["counter (kernels that have it)", *arms], rows)


def _problems(trials: Iterable[Trial]) -> Iterator[str]:
    for trial in trials:
        if trial.problem:
            yield f"- {trial.task}, {trial.arm}, seed {trial.seed}: {trial.problem}"


def _device(suite: PlainSuite) -> str:
    gpu = suite.fingerprint.get("gpu", "an unknown GPU")
    return f"`{suite.device}`: times are modelled, of an {gpu}" if suite.device == "model" else f"an {gpu}"


def _machine(suite: PlainSuite) -> str:
    return ", ".join(f"{name} {value}" for name, value in suite.fingerprint.items())


def _with_interval(speedups: Sequence[float]) -> str:
    if not speedups:
        return ""
    found = estimate([np.log(speedups)])
    return f"{math.exp(found.mean):.2f}x [{math.exp(found.low):.2f}, {math.exp(found.high):.2f}]"


def _mean(values: Sequence[float]) -> float | None:
    return statistics.geometric_mean(values) if values else None


def _average(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0


def _plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _times(speedup: float | None) -> str:
    return f"{speedup:.2f}x" if speedup is not None else ""


def _microseconds(seconds: float | None) -> str:
    return f"{seconds * 1e6:.1f}" if seconds is not None else ""
