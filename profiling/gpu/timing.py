"""How often to run, the median of repeated runs, and how sure it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mctskernel.core.evaluation import Timing

RESAMPLES = 500
CONFIDENCE = 0.95

Runs = Callable[[int], list[float]]
"""Runs something so many times and returns the seconds of each."""


@dataclass(frozen=True)
class Schedule:
    """How long to go on: about `seconds` of the candidate's time, within the fewest and the most runs.

    It stops before that once the median's interval is within `tightness` of the median on either side. The baseline
    takes its turns for a share of the candidate's time; at least `fewest_baseline` of them where they fit into
    `seconds`, and otherwise at least one.
    """

    seconds: float
    fewest: int = 5
    most: int = 100
    batch: int = 10
    tightness: float = 0.002
    baseline_share: float = 0.3
    fewest_baseline: int = 3


def interleaved(
    candidate: Runs, baseline: Runs, schedule: Schedule
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Seconds of a candidate's runs and of a baseline's, in turns, so that what drifts drifts for both.

    The last run is the candidate's.
    """
    # The first run after something else is slower, so it counts for nothing.
    pace = max(candidate(2)[-1], 1e-7)
    wanted = int(np.clip(schedule.seconds / pace, schedule.fewest, schedule.most))
    ours: list[float] = []
    theirs = baseline(1)
    if schedule.fewest_baseline * theirs[0] <= schedule.seconds:
        theirs += baseline(schedule.fewest_baseline - 1)
    while len(ours) < wanted and not (len(ours) >= schedule.batch and _is_tight(ours, schedule.tightness)):
        if sum(theirs) < schedule.baseline_share * sum(ours):
            theirs += baseline(1)
        ours += candidate(min(schedule.batch, wanted - len(ours)))
    return tuple(ours), tuple(theirs)


def timing(shape: str, samples: tuple[float, ...], baseline: tuple[float, ...]) -> Timing:
    """The median of the samples and its interval, in seconds, beside the baseline's median."""
    low, high = median_interval(samples)
    return Timing(
        shape,
        seconds=float(np.median(samples)),
        low=low,
        high=high,
        samples=samples,
        baseline_seconds=float(np.median(baseline)),
    )


def median_interval(samples: tuple[float, ...]) -> tuple[float, float]:
    """The percentile bootstrap interval of the median (Efron and Tibshirani 1993, chapter 13)."""
    # A fixed seed: the same samples always give the same interval.
    draws = np.random.default_rng(0).choice(np.asarray(samples), (RESAMPLES, len(samples)))
    low, high = np.quantile(np.median(draws, axis=1), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def _is_tight(samples: list[float], tightness: float) -> bool:
    low, high = median_interval(tuple(samples))
    middle = float(np.median(samples))
    return high - middle <= tightness * middle and middle - low <= tightness * middle
