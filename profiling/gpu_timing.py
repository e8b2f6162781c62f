"""Statistics of repeated runs: how often to run, the median, and how sure it is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mctskernel.core.evaluation import Timing

WARM_UP_RUNS = 2
FEWEST_RUNS = 7
MOST_RUNS = 60
RESAMPLES = 500
CONFIDENCE = 0.95

Run = Callable[[], float]
"""Runs something once and returns its seconds."""


def time_interleaved(shape: str, candidate: Run, baseline: Run, seconds: float) -> Timing:
    """Time a candidate and the baseline in turn, so that what drifts drifts for both.

    Takes about `seconds` of kernel time, within `FEWEST_RUNS` and `MOST_RUNS` of each.
    """
    for _ in range(WARM_UP_RUNS):
        pace = candidate() + baseline()
    runs = int(np.clip(seconds / max(pace, 1e-9), FEWEST_RUNS, MOST_RUNS))
    pairs = [(candidate(), baseline()) for _ in range(runs)]
    samples, baselines = zip(*pairs, strict=True)
    low, high = median_interval(samples)
    return Timing(
        shape,
        seconds=float(np.median(samples)),
        low=low,
        high=high,
        samples=samples,
        baseline_seconds=float(np.median(baselines)),
    )


def median_interval(samples: tuple[float, ...]) -> tuple[float, float]:
    """The percentile bootstrap interval of the median (Efron and Tibshirani 1993, chapter 13)."""
    # A fixed seed: the same samples always give the same interval.
    draws = np.random.default_rng(0).choice(np.asarray(samples), (RESAMPLES, len(samples)))
    low, high = np.quantile(np.median(draws, axis=1), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)
