"""Acquisition: how much a try is worth, from what is expected of it."""

from __future__ import annotations

import math

import numpy as np

from mctskernel.tree.vector import Array


def expected_improvement(means: Array, deviations: Array, best: float) -> Array:
    """How far above `best` a normally distributed value is expected to be, what is below it counted as nothing.

    Source: Jones, Schonlau and Welch, "Efficient global optimization of expensive black-box functions", 1998.
    """
    above = (means - best) / deviations
    density = np.exp(-above * above / 2) / math.sqrt(2 * math.pi)
    improvement: Array = deviations * (above * _normal(above) + density)
    return improvement


_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def _normal(x: Array) -> Array:
    """The standard normal distribution function, exact far below 0 too, where most candidates are."""
    distribution: Array = 0.5 * _erfc(-x / math.sqrt(2))
    return distribution
