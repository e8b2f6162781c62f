"""Schedules and statistics of repeated runs, without a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from mctskernel.profiling.gpu.timing import Runs, Schedule, interleaved, median_interval, timing


def noisy(seconds: float, seed: int, spread: float = 0.01) -> Runs:
    rng = np.random.default_rng(seed)
    return lambda times: list(seconds * (1 + spread * rng.standard_normal(times)))


def test_a_known_difference_of_two_percent_is_called_right() -> None:
    right = 0
    for seed in range(100):
        samples, baseline = interleaved(noisy(98e-6, seed), noisy(100e-6, seed + 1000), Schedule(0.05))
        found = timing("n=1", samples, baseline)
        assert found.baseline_seconds is not None
        right += found.seconds < found.baseline_seconds
    assert right >= 95


def test_the_baseline_takes_its_turns_for_less_time_than_the_candidate() -> None:
    order: list[str] = []

    def run(name: str, seconds: float) -> Runs:
        def times(count: int) -> list[float]:
            order.extend([name] * count)
            return list(np.random.default_rng(len(order)).uniform(0.9, 1.1, count) * seconds)

        return times

    samples, baseline = interleaved(run("candidate", 1e-4), run("baseline", 3e-4), Schedule(0.01))
    assert 1 < len(baseline) < len(samples)
    assert sum(baseline) < sum(samples)
    assert order[-1] == "candidate"
    turns = [i for i, name in enumerate(order) if name == "baseline"]
    assert min(turns) < len(order) / 2 < max(turns)


@pytest.mark.parametrize(("seconds", "runs"), [(10.0, Schedule.fewest), (1e-6, Schedule.most)])
def test_long_kernels_run_seldom_and_short_ones_not_for_ever(seconds: float, runs: int) -> None:
    samples, _ = interleaved(noisy(seconds, 1, 0.2), noisy(seconds, 2, 0.2), Schedule(0.1))
    assert len(samples) == runs


def test_a_short_baseline_runs_often_enough_for_a_median() -> None:
    _, baseline = interleaved(noisy(1e-4, 1, 1e-4), noisy(2e-3, 2), Schedule(0.05))
    assert len(baseline) == Schedule.fewest_baseline


def test_a_slow_baseline_runs_once() -> None:
    _, baseline = interleaved(noisy(1e-4, 1), noisy(1.0, 2), Schedule(0.05))
    assert len(baseline) == 1


def test_a_steady_kernel_needs_few_runs() -> None:
    samples, _ = interleaved(noisy(1e-5, 1, 1e-4), noisy(1e-5, 2), Schedule(0.05))
    assert len(samples) == Schedule.batch


def test_the_interval_is_the_same_each_time_and_closes_on_equal_samples() -> None:
    samples = tuple(np.random.default_rng(3).uniform(1, 2, 30))
    assert median_interval(samples) == median_interval(samples)
    assert median_interval((1.0,) * 10) == (1.0, 1.0)
