"""The posterior: what is expected of candidates, kept up to date as kernels are observed one by one."""

from __future__ import annotations

import math

import numpy as np

from mctskernel.tree.edit_model.covariance import Distances, Hyperparameters, covariance
from mctskernel.tree.edit_model.fitting import JITTER
from mctskernel.tree.vector import Array

TINY = 1e-9


class Posterior:
    """A Gaussian process of fixed hyperparameters over a table of candidates and a table of observed kernels.

    An observation costs as many operations as candidates times observations. It says where something is known, and
    lowers the variance at once; what is known there is an argument of `means`, since it may come later.
    Source: Rasmussen and Williams, "Gaussian processes for machine learning", 2006, algorithm 2.1, with the Cholesky
    factor grown row by row.
    """

    def __init__(
        self, between: Distances, hyper: Hyperparameters, observed: Array, candidates: Array
    ) -> None:
        self._between, self._hyper = between, hyper
        self._observed, self._candidates = Grid(observed), Grid(candidates)
        gram = covariance(between, hyper, observed, observed)
        lower = np.linalg.cholesky(gram + self._noise * np.eye(len(observed)))
        inverse = np.linalg.inv(lower)
        projections = inverse @ covariance(between, hyper, observed, candidates)
        self._lower, self._inverse, self._projections = Grid(lower), Grid(inverse), Grid(projections)
        self._variances = hyper.variance - (projections**2).sum(axis=0)

    def extend(self, between: Distances) -> None:
        """Further factors, and levels of those without order, that no observation has."""
        self._between = between

    def add(self, candidates: Array) -> None:
        """Further candidates, after those that there are."""
        alike = covariance(self._between, self._hyper, self._observed.view, candidates)
        projections = self._inverse.view @ alike
        self._candidates.append_rows(candidates)
        self._projections.append_columns(projections)
        variances = self._hyper.variance - (projections**2).sum(axis=0)
        self._variances = np.concatenate([self._variances, variances])

    def observe(self, row: Array) -> None:
        """One more kernel that is, or will be, evaluated."""
        row = row[None, :]
        alike = covariance(self._between, self._hyper, self._observed.view, row)[:, 0]
        along = self._inverse.view @ alike
        pivot = math.sqrt(max(self._hyper.variance + self._noise - float(along @ along), JITTER))
        ahead = covariance(self._between, self._hyper, row, self._candidates.view)[0]
        projection = (ahead - along @ self._projections.view) / pivot
        inverse = -(along @ self._inverse.view) / pivot
        self._variances = self._variances - projection**2
        self._projections.append_rows(projection[None, :])
        for triangle, below, corner in ((self._lower, along, pivot), (self._inverse, inverse, 1 / pivot)):
            triangle.append_columns(np.zeros((len(along), 1)))
            triangle.append_rows(np.append(below, corner)[None, :])
        self._observed.append_rows(row)

    def means(self, values: Array, first: int = 0) -> Array:
        """What is expected of each candidate from number `first` on.

        NaN among `values`, of which there is one for each observation, is not known yet.

        What isn't known is taken to be what the observations before it make of it (Ginsbourger, Le Riche and Carraro,
        "Kriging is well-suited to parallelize optimization", 2010: the Kriging believer).
        """
        known = ~np.isnan(values)
        if known.all():
            expected: Array = (self._inverse.view @ values) @ self._projections.view[:, first:]
        else:
            weights = np.zeros(len(values))
            weights[known] = np.linalg.solve(self._lower.view[np.ix_(known, known)], values[known])
            expected = weights @ self._projections.view[:, first:]
        return expected

    @property
    def deviations(self) -> Array:
        """One standard deviation of each candidate."""
        deviations: Array = np.sqrt(np.maximum(self._variances, TINY))
        return deviations

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
