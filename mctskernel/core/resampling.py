"""Statistics without distribution assumptions: bootstrap intervals, sign-flip tests, rank correlation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import geometric_mean

import numpy as np

from mctskernel.core.task import Array

RESAMPLES = 2000
CONFIDENCE = 0.95

EXACT = 12  # up to this many differences every combination of signs is tried
FLIPS = 10_000  # random combinations of signs for more differences
FEWEST_FOR_A_RANKING = 3  # with two values, any ranking agrees half of the time


@dataclass(frozen=True)
class Estimate:
    """An estimate and its 95 % percentile bootstrap interval."""

    mean: float
    low: float
    high: float


def percentile_interval(resampled: Array) -> tuple[float, float]:
    """Return the 95 % percentile interval of a statistic that was computed of resampled data."""
    low, high = np.quantile(resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def estimate(groups: Sequence[Array]) -> Estimate:
    """Return the mean over groups of their means, resampled within groups (Efron, 1979, stratified)."""
    rng = np.random.default_rng(0)
    resampled = np.mean(
        [group[rng.integers(len(group), size=(RESAMPLES, len(group)))].mean(axis=1) for group in groups],
        axis=0,
    )
    return Estimate(float(np.mean([group.mean() for group in groups])), *percentile_interval(resampled))


def ratio_of_medians(pairs: Sequence[tuple[Array, Array]]) -> Estimate:
    """Return the geometric mean over pairs of samples of the first's median over the second's.

    The samples are resampled independently, since they are not paired. Values are positive. Source: Efron and
    Tibshirani, "An Introduction to the Bootstrap", 1993, chapters 8 and 13.
    """
    rng = np.random.default_rng(0)
    logs = [_log_medians(first, rng) - _log_medians(second, rng) for first, second in pairs]
    known = geometric_mean(float(np.median(first) / np.median(second)) for first, second in pairs)
    low, high = percentile_interval(np.mean(logs, axis=0))
    return Estimate(known, math.exp(low), math.exp(high))


def sign_flip_p(differences: Array) -> float:
    """Return the two-sided p-value of the sign-flip (paired randomisation) test that the mean difference is 0.

    Exact for up to `EXACT` differences, with random signs for more; then the observed signs count as one of the draws.
    With n differences it is never below 2 / 2^n. Source: Fisher, "The Design of Experiments", 1935, section 21; Phipson
    and Smyth, "Permutation p-values should never be zero", 2010.
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
    """Adjust p-values of several tests by Holm's sequentially rejective procedure (1979)."""
    adjusted, least = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = least
    return adjusted


def share_interval(successes: int, count: int) -> tuple[float, float]:
    """Return the 95 % Wilson interval (1927) of a proportion; 0 to 1 where `count` is 0."""
    if not count:
        return 0.0, 1.0
    square, share = _NORMAL_QUANTILE**2 / count, successes / count
    middle = (share + square / 2) / (1 + square)
    reach = math.sqrt(square * share * (1 - share) + square**2 / 4) / (1 + square)
    return max(0.0, middle - reach), min(1.0, middle + reach)


_NORMAL_QUANTILE = 1.959964


def rank_correlation(first: Array, second: Array) -> float:
    """Return Spearman's rank correlation (1904), ties at their mean rank; NaN for too few or constant values."""
    if len(first) < FEWEST_FOR_A_RANKING or not np.ptp(first) or not np.ptp(second):
        return math.nan
    return float(np.corrcoef(ranks(first), ranks(second))[0, 1])


def ranks(values: Array) -> Array:
    """Return the ranks from 1, ties sharing the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2.0)[inverse])


def _log_medians(sample: Array, rng: np.random.Generator) -> Array:
    return np.asarray(np.log(np.median(rng.choice(sample, (RESAMPLES, len(sample))), axis=1)))
