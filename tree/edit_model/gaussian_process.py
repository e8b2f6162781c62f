"""A Gaussian process over descriptions of kernels: how alike their log times are, and what is expected of candidates.

With k_j the similarity of two descriptions in factor j (1 where they agree, exp(-distance / length) where not), and D
places for factors, the covariance of two kernels is

    main * mean_j k_j  +  pairs * mean_(i<j) k_i k_j  +  whole * prod_j k_j

so that a kernel's log time is a sum of what each factor does, what each two do together, and what only all do.
Source: Duvenaud et al., "Additive Gaussian processes", 2011, orders 1, 2 and D. exp(-distance) (Matern 1/2) because
times jump from one level to the next: the smoother Matern functions were worse on search-space caches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mctskernel.tree.edit_model.frontier import UNSET, Vocabulary

Array = npt.NDArray[Any]

JITTER = 1e-6  # added to the noise, so that no covariance is singular

FROM_UNSET = 0.25
"""Distance of unset from the middle of numbers, and from the only one: that a change is made. Where it is greater, what
was never tried comes before the tunables, and most of that (compiler hints, say) does less."""

TINY = 1e-9  # the least variance of a candidate


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
    """Numbers are as far apart as their ranks, unset beside the middle of them; words, and unset, a whole length."""
    return Distances({j: _table(vocabulary.levels(j)) for j in vocabulary.order}, places)


def similarities(between: Distances, lengths: Array, first: Array, second: Array) -> Iterator[Array]:
    """k_j of every pair of rows of two tables, for each factor in which any of them differ."""
    for j, table in between.tables.items():
        a, b = first[:, j], second[:, j]
        if (a != a[:1]).any() or (b != a[:1]).any():
            yield np.exp(table / -lengths[j])[a].take(b, axis=1)


def covariance(between: Distances, hyper: Hyperparameters, first: Array, second: Array) -> Array:
    """Of every pair of rows of two tables, without noise."""
    alike = between.places
    total = np.zeros((len(first), len(second)))
    squares = np.zeros_like(total)
    product = np.ones_like(total)
    for k in similarities(between, hyper.lengths, first, second):
        alike -= 1
        total += k
        product *= k
        squares += np.square(k, out=k)
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


class Posterior:
    """A Gaussian process of fixed hyperparameters over a table of candidates and a table of observed kernels.

    An observation costs as many operations as candidates times observations. It lowers the variance at once; its value,
    which may come later (`believed`), is an argument of `means`.
    Source: Rasmussen and Williams, "Gaussian processes for machine learning", 2006, algorithm 2.1, with the Cholesky
    factor grown row by row.
    """

    def __init__(
        self, between: Distances, hyper: Hyperparameters, observed: Array, candidates: Array
    ) -> None:
        self._between, self._hyper = between, hyper
        # Candidates are kept by factor, so that a factor's codes are read in one piece.
        self._observed, self._candidates = Grid(observed), Grid(np.ascontiguousarray(candidates.T))
        gram = covariance(between, hyper, observed, observed)
        lower = np.linalg.cholesky(gram + self._noise * np.eye(len(observed)))
        inverse = np.linalg.inv(lower)
        projections = inverse @ covariance(between, hyper, observed, self._candidates.view.T)
        self._variances = hyper.variance - (projections**2).sum(axis=0)
        self._lower, self._inverse = Grid(lower), Grid(inverse)
        self._projections = Grid(projections)

    def extend(self, between: Distances) -> None:
        """Further factors, and levels of those without order, that no observation has."""
        self._between = between

    def add(self, candidates: Array) -> None:
        """Further candidates, after those that there are."""
        alike = covariance(self._between, self._hyper, self._observed.view, candidates)
        projections = self._inverse.view @ alike
        self._candidates.append_columns(candidates.T)
        self._projections.append_columns(projections)
        variances = self._hyper.variance - (projections**2).sum(axis=0)
        self._variances = np.concatenate([self._variances, variances])

    def keep(self, candidates: Sequence[int]) -> None:
        """Forget all but these candidates."""
        self._candidates = Grid(self._candidates.view[:, candidates])
        self._projections = Grid(self._projections.view[:, candidates])
        self._variances = self._variances[candidates]

    def observe(self, row: Array) -> None:
        """One more kernel that is, or will be, evaluated."""
        row = row[None, :]
        alike = covariance(self._between, self._hyper, self._observed.view, row)[:, 0]
        along = self._inverse.view @ alike
        pivot = math.sqrt(max(self._hyper.variance + self._noise - float(along @ along), JITTER))
        ahead = covariance(self._between, self._hyper, row, self._candidates.view.T)[0]
        projection = (ahead - self._projected(along)) / pivot
        inverse = -(along @ self._inverse.view) / pivot
        self._variances = self._variances - projection**2
        self._projections.append_rows(projection[None, :])
        for triangle, below, corner in ((self._lower, along, pivot), (self._inverse, inverse, 1 / pivot)):
            triangle.append_columns(np.zeros((len(along), 1)))
            triangle.append_rows(np.append(below, corner)[None, :])
        self._observed.append_rows(row)

    def means(self, values: Array, first: int = 0) -> Array:
        """The expected value of each candidate from number `first` on, given the value of each observation."""
        return self._projected(self._inverse.view @ values, first)

    def believed(self, values: Array) -> Array:
        """The value of each observation, and of one that isn't known yet, NaN, what all the known ones predict.

        Source: Ginsbourger, Le Riche and Carraro, "Kriging is well-suited to parallelize optimization", 2010, the
        Kriging believer.
        """
        known = ~np.isnan(values)
        if known.all():
            return values
        lower = self._lower.view[known]
        weights = lower.T @ np.linalg.solve(lower @ lower.T, values[known])
        believed: Array = self._lower.view @ weights
        return believed

    @property
    def deviations(self) -> Array:
        """One standard deviation of each candidate."""
        deviations: Array = np.sqrt(np.maximum(self._variances, TINY))
        return deviations

    def _projected(self, weights: Array, first: int = 0) -> Array:
        projected: Array = weights @ self._projections.view[:, first:]
        return projected

    @property
    def _noise(self) -> float:
        return self._hyper.noise + JITTER


class Grid:
    """A table that grows at its right and lower edges without being copied each time."""

    def __init__(self, content: Array) -> None:
        self._storage, self._shape = content, content.shape

    @property
    def view(self) -> Array:
        """What it holds."""
        return self._storage[: self._shape[0], : self._shape[1]]

    def append_rows(self, rows: Array) -> None:
        """Adds rows below."""
        self._grow(len(rows), 0)
        self.view[self._shape[0] - len(rows) :] = rows

    def append_columns(self, columns: Array) -> None:
        """Adds columns at the right."""
        self._grow(0, columns.shape[1])
        self.view[:, self._shape[1] - columns.shape[1] :] = columns

    def _grow(self, rows: int, columns: int) -> None:
        before = self.view
        self._shape = (self._shape[0] + rows, self._shape[1] + columns)
        if any(need > there for need, there in zip(self._shape, self._storage.shape, strict=True)):
            sizes = [
                there if need <= there else need + need // 2 + 8
                for need, there in zip(self._shape, self._storage.shape, strict=True)
            ]
            self._storage = np.zeros(sizes, before.dtype)
            self._storage[: before.shape[0], : before.shape[1]] = before


def _table(levels: Sequence[float | str]) -> Array:
    """Distances by code, the unset one first."""
    apart = 1.0 - np.eye(len(levels) + 1)
    at = _positions(levels)
    if at is not None:
        apart[UNSET, 1:] = apart[1:, UNSET] = FROM_UNSET + np.abs(at - 0.5)
        apart[UNSET + 1 :, UNSET + 1 :] = np.abs(at[:, None] - at[None, :])
    return apart


def _positions(levels: Sequence[float | str]) -> Array | None:
    """Where levels lie from 0, the least, to 1, the greatest, evenly; None if they have no order."""
    if not all(isinstance(level, int | float) for level in levels):
        return None
    ranks = np.argsort(np.argsort(np.array(levels, dtype=np.float64)))
    return ranks / (len(levels) - 1) if len(levels) > 1 else np.array([0.5])
