"""Means of figures that come in clusters, with intervals that draw whole clusters again."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from mctskernel.report.resampling import CONFIDENCE, RESAMPLES


class Interval(msgspec.Struct, frozen=True):
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float


def clustered_mean(values: Sequence[float], clusters: Sequence[str]) -> Interval:
    """The mean of all values, and its percentile interval when clusters are drawn again with replacement.

    Values of one cluster may depend on each other. With one cluster the interval says nothing, and is the mean.
    Source: Davison and Hinkley, "Bootstrap methods and their application", 1997, section 3.8. Raises ValueError without
    values.
    """
    if not values:
        raise ValueError("There is no mean of no values.")
    names = list(dict.fromkeys(clusters))
    place = [names.index(each) for each in clusters]
    sums = np.bincount(place, values)
    counts = np.bincount(place)
    drawn = np.random.default_rng(0).integers(len(names), size=(RESAMPLES, len(names)))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(float(np.mean(values)), float(low), float(high))
