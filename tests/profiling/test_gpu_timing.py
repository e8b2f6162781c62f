"""Statistics of repeated runs, without a GPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mctskernel.profiling.gpu_timing import FEWEST_RUNS, MOST_RUNS, median_interval, time_interleaved


def noisy(seconds: float, seed: int) -> Callable[[], float]:
    rng = np.random.default_rng(seed)
    return lambda: seconds * float(1 + 0.01 * rng.standard_normal())


def test_a_known_difference_is_seen_and_lies_outside_the_interval() -> None:
    timing = time_interleaved("n=1", noisy(0.98e-3, 1), noisy(1e-3, 2), seconds=0.1)
    assert timing.baseline_seconds is not None
    assert timing.baseline_seconds / timing.seconds == pytest.approx(1 / 0.98, rel=0.01)
    assert timing.low <= timing.seconds <= timing.high < timing.baseline_seconds


def test_candidate_and_baseline_run_in_turn() -> None:
    order: list[str] = []

    def run(name: str) -> float:
        order.append(name)
        return 1e-3

    time_interleaved("n=1", lambda: run("candidate"), lambda: run("baseline"), seconds=0.01)
    assert order == ["candidate", "baseline"] * (len(order) // 2)


@pytest.mark.parametrize(("seconds", "runs"), [(10.0, FEWEST_RUNS), (1e-9, MOST_RUNS)])
def test_long_kernels_run_seldom_and_short_ones_not_for_ever(seconds: float, runs: int) -> None:
    timing = time_interleaved("n=1", lambda: seconds, lambda: seconds, seconds=0.1)
    assert len(timing.samples) == runs


def test_the_interval_is_the_same_each_time_and_closes_on_equal_samples() -> None:
    samples = tuple(np.random.default_rng(3).uniform(1, 2, 30))
    assert median_interval(samples) == median_interval(samples)
    assert median_interval((1.0,) * 10) == (1.0, 1.0)
