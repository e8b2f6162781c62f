"""What can be said of samples by drawing them again: intervals and tests that assume no distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mctskernel.core.task import Array

RESAMPLES = 2000
CONFIDENCE = 0.95

EXACT = 12
"""Differences up to which every choice of signs is tried."""

FLIPS = 10_000
"""Choices of signs that are drawn for more differences than that."""


@dataclass(frozen=True)
class Estimate:
    """A figure and its bootstrap interval, by percentiles, at 95 %."""

    mean: float
    low: float
    high: float


def estimate(groups: Sequence[Array]) -> Estimate:
    """The mean over groups of the mean within them. What is drawn again are the values within each group.

    Source: Efron, "Bootstrap methods: another look at the jackknife", 1979, stratified by group.
    """
    rng = np.random.default_rng(0)
    resampled = np.mean(
        [group[rng.integers(len(group), size=(RESAMPLES, len(group)))].mean(axis=1) for group in groups],
        axis=0,
    )
    return Estimate(float(np.mean([group.mean() for group in groups])), *_percentiles(resampled))


def ratio_of_medians(pairs: Sequence[tuple[Array, Array]]) -> Estimate:
    """The geometric mean over pairs of samples of the first's median over the second's.

    Each sample is drawn again by itself, since they were not taken in pairs. Values are positive. Source: Efron and
    Tibshirani, "An Introduction to the Bootstrap", 1993, chapters 8 and 13.
    """
    rng = np.random.default_rng(0)
    logs = [_log_medians(first, rng) - _log_medians(second, rng) for first, second in pairs]
    known = [math.log(float(np.median(first) / np.median(second))) for first, second in pairs]
    low, high = _percentiles(np.mean(logs, axis=0))
    return Estimate(math.exp(math.fsum(known) / len(known)), math.exp(low), math.exp(high))


def sign_flip_p(differences: Array) -> float:
    """How often paired differences would be as far from 0 on average, on either side, if each had either sign.

    The randomisation test for pairs: exact for up to `EXACT` differences, with signs drawn at random for more; then the
    observed signs count as one of the draws. With n differences it is never below 2 / 2^n. Source: Fisher, "The Design
    of Experiments", 1935, section 21; Phipson and Smyth, "Permutation p-values should never be zero", 2010.
    """
    count = len(differences)
    if count <= EXACT:
        signs = 1 - 2 * ((np.arange(2**count)[:, None] >> np.arange(count)) & 1)
    else:
        signs = np.random.default_rng(0).choice((-1, 1), (FLIPS, count))
    observed = abs(float(differences.sum()))
    # Sums of the same numbers in another order differ in their last digits.
    as_far = int(np.count_nonzero(np.abs(signs @ differences) >= observed * (1 - 1e-9)))
    return as_far / len(signs) if count <= EXACT else (as_far + 1) / (FLIPS + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values of several tests, raised so that any of them being low by chance is as unlikely as it says.

    Source: Holm, "A simple sequentially rejective multiple test procedure", 1979.
    """
    adjusted, least = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = least
    return adjusted


def share_interval(successes: int, count: int) -> tuple[float, float]:
    """The 95 % interval of a share of which so many of `count` were seen; the whole range where count is 0.

    Source: Wilson, "Probable inference, the law of succession, and statistical inference", 1927.
    """
    if not count:
        return 0.0, 1.0
    square, share = _NORMAL_QUANTILE**2 / count, successes / count
    middle = (share + square / 2) / (1 + square)
    reach = math.sqrt(square * share * (1 - share) + square**2 / 4) / (1 + square)
    return max(0.0, middle - reach), min(1.0, middle + reach)


_NORMAL_QUANTILE = 1.959964


def _log_medians(sample: Array, rng: np.random.Generator) -> Array:
    """Logarithms of the medians of the sample as it was drawn again and again."""
    return np.asarray(np.log(np.median(rng.choice(sample, (RESAMPLES, len(sample))), axis=1)))


def _percentiles(values: Array) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)
