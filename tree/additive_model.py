"""An additive model: rewards as sums of effects, learnt one observation after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mctskernel.tree.vector import Array, Vector

CORRELATED = 128
"""Effects, the first ones, of which it is known how they depend on each other: an observation costs its square."""


GUESSED_NOISE, GUESSES = 0.3, 2
"""The noise before anything is observed, in the unit of the sums, and how many observations that guess counts for."""


@dataclass(frozen=True)
class Belief:
    """What is believed of effects, in the order in which they were observed first: normal around `means`.

    In units of `noise`, the standard deviation of what sums are beside their effects: the first effects have the
    covariance `factor @ factor.T`, the others these `deviations` and no covariance.
    """

    means: Array
    noise: float
    factor: Array
    deviations: Array

    def draw(self, rng: np.random.Generator) -> Array:
        """Effects as they may be, by what is believed of them."""
        normal, known = rng.standard_normal(len(self.means)), len(self.factor)
        errors = np.concatenate([self.factor @ normal[:known], self.deviations * normal[known:]])
        drawn: Array = self.means + self.noise * errors
        return drawn


class AdditiveModel:
    """Bayesian linear regression on which of many effects are present.

    Beforehand effects are independent and normal around 0, with the given variance in units of the noise's, which is
    learnt beside them: its inverse gamma distribution is worth `GUESSES` observations at first. Of the first
    `CORRELATED` effects that are observed the covariances are kept, so that among these the order of observations
    doesn't matter; the others are taken for independent after each observation too, and cost a step each.
    Source: Rasmussen and Williams, "Gaussian processes for machine learning", 2006, section 2.1, one observation at a
    time; Gelman et al., "Bayesian data analysis", 2013, section 14.2, for the noise; Graepel et al., "Web-scale
    Bayesian click-through rate prediction", 2010, for the others.
    """

    def __init__(self, variance: float) -> None:
        self._prior = variance
        self._places: dict[int, int] = {}
        self._mean, self._variance = Vector("float64"), Vector("float64")
        self._covariance: Array = np.eye(8) * variance
        self._squares, self._observed = 0.0, 0

    @property
    def effects(self) -> list[int]:
        """Those that were observed, in the order of the first time."""
        return list(self._places)

    @property
    def means(self) -> Array:
        """What each of `effects` is expected to be; any other is expected to be 0."""
        return self._mean.view

    def belief(self) -> Belief:
        """What is believed now; costs the cube of `CORRELATED` at the most."""
        known = min(len(self._mean), len(self._covariance))
        # What is next to nothing may have come below 0 by rounding.
        covariance = self._covariance[:known, :known] + np.eye(known) * (1e-9 * self._prior)
        return Belief(
            self._mean.view.copy(),
            math.sqrt((GUESSES * GUESSED_NOISE**2 + self._squares) / (GUESSES + self._observed)),
            np.linalg.cholesky(covariance),
            np.sqrt(self._variance.view[known:]),
        )

    def observe(self, effects: Sequence[int], total: float) -> None:
        """Takes in a sum of effects, different ones."""
        places = [self._place(effect) for effect in effects]
        mean, variance, known = self._mean.view, self._variance.view, len(self._covariance)
        first, others = [i for i in places if i < known], [i for i in places if i >= known]
        shared, own = self._covariance[:, first].sum(axis=1), variance[others]
        uncertainty = 1 + shared[first].sum() + own.sum()
        surprise = (total - mean[places].sum()) / uncertainty
        self._squares += surprise * surprise * uncertainty
        self._observed += 1
        mean[:known] += shared[: len(mean)] * surprise
        mean[others] += own * surprise
        self._covariance -= np.outer(shared, shared / uncertainty)
        variance[others] -= own * own / uncertainty

    def _place(self, effect: int) -> int:
        place = self._places.setdefault(effect, len(self._places))
        if place == len(self._mean):
            if place == len(self._covariance) < CORRELATED:
                grown = np.eye(2 * place) * self._prior
                grown[:place, :place] = self._covariance
                self._covariance = grown
            self._mean.append(0.0)
            self._variance.append(self._prior)
        return place
