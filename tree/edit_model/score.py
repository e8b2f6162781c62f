"""The value of an untried edit, from what the edit model expects of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Prospects:
    """What is expected of the edits that may be tried; arrays have an element for each.

    `means` and `deviations` are of their log speed-ups in units of `spread`, `best` is that of the fastest kernel,
    or of a pending one that is expected to be faster.
    """

    means: Array
    deviations: Array
    best: float
    spread: float


def expected_improvement(prospects: Prospects) -> Array:
    """Return how much faster than the fastest each kernel is expected to be, as a logarithm; a slower one counts as 0.

    Source: Jones, Schonlau and Welch, "Efficient global optimization of expensive black-box functions", 1998.
    """
    above = (prospects.means - prospects.best) / prospects.deviations
    improvement: Array = np.log(prospects.deviations) + log_excess(above)
    return improvement


LOWEST, HIGHEST, PARTS = -30.0, 10.0, 500
"""Of the table of `log_excess`, and how many steps of it there are to 1: its error is below 1e-6."""


def log_excess(z: Array) -> Array:
    """log(z * Phi(z) + phi(z)): of how far a standard normal variable exceeds -z, values below it counting as 0."""
    known = _table()
    place = (np.clip(z, LOWEST, HIGHEST) - LOWEST) * PARTS
    left = np.minimum(place.astype(np.intp), len(known) - 2)
    excess: Array = known[left] + (place - left) * (known[left + 1] - known[left])
    # Far below 0 it approaches phi(z) / z^2, above it z.
    low, high = z[z < LOWEST], z[z > HIGHEST]
    excess[z < LOWEST] = known[0] + (LOWEST**2 - low**2) / 2 - 2 * np.log(low / LOWEST)
    excess[z > HIGHEST] = np.log(high)
    return excess


@cache
def _table() -> Array:
    places = np.linspace(LOWEST, HIGHEST, int(HIGHEST - LOWEST) * PARTS + 1)
    return np.array([math.log(_excess(z)) for z in places.tolist()])


def _excess(z: float) -> float:
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    if z > -10:
        return z * 0.5 * math.erfc(-z / math.sqrt(2)) + density
    # The difference of two numbers that are almost equal: by its asymptotic series.
    inverse = 1 / (z * z)
    return density * inverse * (1 - inverse * (3 - inverse * (15 - inverse * (105 - inverse * 945))))
