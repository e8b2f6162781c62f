"""Schedules and statistics of repeated runs, without a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from mctskernel.core.evaluation import ClockEvent, GpuState
from mctskernel.profiling.gpu import timing as timing_module
from mctskernel.profiling.gpu.timing import RETAKES, Runs, Samples, Schedule, interleaved


def test_the_baseline_takes_its_turns_for_less_time_than_the_candidate() -> None:
    order: list[str] = []

    def run(name: str, seconds: float) -> Runs:
        def times(count: int) -> list[float]:
            order.extend([name] * count)
            return list(np.random.default_rng(len(order)).uniform(0.9, 1.1, count) * seconds)

        return times

    turns = interleaved(run("candidate", 1e-4), run("baseline", 3e-4), Schedule(0.01))
    assert 1 < len(turns.baseline) < len(turns.samples)
    assert sum(turns.baseline) < sum(turns.samples)
    assert order[-1] == "candidate"
    places = [i for i, name in enumerate(order) if name == "baseline"]
    assert min(places) < len(order) / 2 < max(places)


@pytest.mark.parametrize(
    ("seconds", "best", "candidate", "baseline"),
    [(0.3, math.inf, 1, 1), (0.03, math.inf, 3, 1), (0.03, 0.01, 1, 0), (0.003, 0.001, 17, 3)],
)
def test_the_slower_a_kernel_the_fewer_its_runs(
    seconds: float, best: float, candidate: int, baseline: int
) -> None:
    made = dict.fromkeys(("candidate", "baseline"), 0)

    def runs(name: str) -> Runs:
        def run(times: int) -> list[float]:
            made[name] += times
            return list(np.random.default_rng(made[name]).uniform(0.9, 1.1, times) * seconds)

        return run

    schedule = Schedule(0.05, hopeless_seconds=best, fewest_baseline=3 if seconds < 0.01 else 1)
    turns = interleaved(runs("candidate"), runs("baseline"), schedule)
    assert len(turns.samples) == candidate
    assert made["candidate"] in {candidate, candidate + 2}, "the first runs of a fast one don't count"
    assert len(turns.baseline) >= baseline
    assert bool(turns.baseline) == bool(baseline)


STEADY = GpuState(1980, 2619, 40, 300.0)
THROTTLED = GpuState(1500, 2619, 88, 300.0, (ClockEvent.HARDWARE_THERMAL,))


class Gpu:
    """One whose state depends on how many runs it has made, and with it the seconds of each run."""

    def __init__(self, state_after: Callable[[int], GpuState]) -> None:
        self.state_after = state_after
        self.made = 0

    def runs(self, seconds: float) -> Runs:
        def run(times: int) -> list[float]:
            taken = []
            for _ in range(times):
                taken.append(seconds * 1980 / (self.glance().sm_mhz or 1980) * (1 + 1e-5 * (self.made % 3)))
                self.made += 1
            return taken

        return run

    def glance(self) -> GpuState:
        return self.state_after(self.made)

    read = glance


def turns_of(gpu: Gpu) -> Samples:
    return interleaved(gpu.runs(50e-6), gpu.runs(100e-6), Schedule(0.05), gpu)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What was waited for."""
    waited: list[float] = []
    monkeypatch.setattr(timing_module.time, "sleep", waited.append)
    return waited


def ratio(turns: Samples) -> float:
    return float(np.median(turns.samples) / np.median(turns.baseline))


def test_runs_while_the_gpu_is_slowed_down_are_thrown_away_and_made_again(pauses: list[float]) -> None:
    gpu = Gpu(lambda _: STEADY if pauses else THROTTLED)
    turns = turns_of(gpu)
    assert max(turns.samples) < 51e-6
    assert max(turns.baseline) < 102e-6
    assert (turns.dropped, turns.disturbed, len(pauses)) == (10, "", 1)


def test_a_gpu_that_stays_slowed_down_is_waited_for_so_long_and_then_the_time_says_so(
    pauses: list[float],
) -> None:
    turns = turns_of(Gpu(lambda _: THROTTLED))
    assert turns.disturbed == "the GPU was being slowed down (hardware thermal slowdown)"
    assert len(turns.samples) >= Schedule.batch
    assert ratio(turns) == pytest.approx(0.5, rel=1e-3), "both were slowed down"
    assert len(pauses) == RETAKES


def test_after_a_change_of_the_clock_both_kernels_are_timed_at_the_new_one(pauses: list[float]) -> None:
    slower = GpuState(1800, 2619)
    turns = turns_of(Gpu(lambda made: STEADY if made < 8 else slower))
    assert ratio(turns) == pytest.approx(0.5, rel=1e-3)
    assert (turns.before, turns.after) == (slower, slower)
    assert turns.dropped >= 10
    assert pauses == [], "an idle GPU would lower its clock again"
