"""How alike the times of two kernels are expected to be, from the factors in which they differ.

With k_j the likeness of two descriptions in factor j (1 where they agree, exp(-distance / length) where not), and D
places for factors, the covariance of two kernels is

    main * mean_j k_j  +  pairs * mean_(i<j) k_i k_j  +  whole * prod_j k_j

so that a kernel's log time is a sum of what each factor does, what each two do together, and what only all do.
Source: Duvenaud et al., "Additive Gaussian processes", 2011, orders 1, 2 and D. exp(-distance) (Matern 1/2) because
times jump from one level to the next: the smoother Matern functions were worse on recorded spaces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mctskernel.tree.edit_model.descriptions import UNSET, Vocabulary, positions
from mctskernel.tree.vector import Array


@dataclass(frozen=True)
class Hyperparameters:
    """Length of each factor, in which the whole range of its levels is 1; weights, of which the variance is the sum."""

    lengths: Array
    main: float
    pairs: float
    whole: float
    noise: float

    @property
    def variance(self) -> float:
        """Of a kernel of which nothing is known, without noise."""
        return self.main + self.pairs + self.whole


@dataclass(frozen=True)
class Distances:
    """Between the levels of each factor by their codes, from 0 to 1; `places` of factors, unused ones included.

    The tables are by the factors' numbers, in the order of their names: numbers depend on when a factor was met, and no
    sum may.
    """

    tables: Mapping[int, Array]
    places: int


def distances(vocabulary: Vocabulary, places: int) -> Distances:
    """Levels with an order are as far apart as their ranks, others and what is unset are a whole length away."""
    return Distances({j: _table(vocabulary.levels(j)) for j in vocabulary.order}, places)


def likenesses(between: Distances, lengths: Array, first: Array, second: Array) -> list[Array]:
    """k_j of every pair of rows of two tables, for each factor in which any of them differ."""
    found = []
    for j, table in between.tables.items():
        a, b = first[:, j], second[:, j]
        if (a != a[:1]).any() or (b != a[:1]).any():
            found.append(np.exp(table / -lengths[j])[a[:, None], b[None, :]])
    return found


def covariance(between: Distances, hyper: Hyperparameters, first: Array, second: Array) -> Array:
    """Of every pair of rows of two tables, without noise."""
    alike = between.places
    total = np.zeros((len(first), len(second)))
    squares = np.zeros_like(total)
    product = np.ones_like(total)
    for k in likenesses(between, hyper.lengths, first, second):
        alike -= 1
        total += k
        squares += k * k
        product *= k
    total += alike
    squares += alike
    combined: Array = (
        hyper.main * total / between.places
        + hyper.pairs * pair_mean(total, squares, between.places)
        + hyper.whole * product
    )
    return combined


def pair_mean(total: Array, squares: Array, places: int) -> Array:
    """The mean of k_i k_j over pairs, from the sum and the sum of squares of k over all places."""
    mean: Array = (total * total - squares) / (places * (places - 1))
    return mean


def _table(levels: Sequence[float | str]) -> Array:
    """Distances by code, the unset one first."""
    size = len(levels) + 1
    apart = 1.0 - np.eye(size)
    at = positions(levels)
    if at is not None:
        apart[UNSET + 1 :, UNSET + 1 :] = np.abs(at[:, None] - at[None, :])
    return apart
