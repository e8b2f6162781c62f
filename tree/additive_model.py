"""An additive model: rewards as sums of effects, learnt one observation after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mctskernel.tree.vector import Array, Vector

CORRELATED = 128
"""Effects, the first ones, of which it is known how they depend on each other: an observation costs its square."""


class AdditiveModel:
    """Bayesian linear regression on which of many effects are present, with noise of variance 1.

    Beforehand effects are independent and normal around 0, with the given variance. Of the first `CORRELATED` that are
    observed the covariances are kept, so that among these the order of observations doesn't matter; the others are
    taken for independent after each observation too, and cost a step each.
    Source: Rasmussen and Williams, "Gaussian processes for machine learning", 2006, section 2.1, one observation at a
    time; Graepel et al., "Web-scale Bayesian click-through rate prediction", 2010, for the others.
    """

    def __init__(self, variance: float) -> None:
        self._prior = variance
        self._places: dict[int, int] = {}
        self._mean, self._variance = Vector("float64"), Vector("float64")
        self._covariance: Array = np.eye(8) * variance

    @property
    def effects(self) -> list[int]:
        """Those that were observed, in the order of the first time."""
        return list(self._places)

    @property
    def means(self) -> Array:
        """What each of `effects` is expected to be; any other is expected to be 0."""
        return self._mean.view

    def observe(self, effects: Sequence[int], total: float) -> None:
        """Takes in a sum of effects, different ones."""
        places = [self._place(effect) for effect in effects]
        mean, variance, known = self._mean.view, self._variance.view, len(self._covariance)
        first, others = [i for i in places if i < known], [i for i in places if i >= known]
        shared, own = self._covariance[:, first].sum(axis=1), variance[others]
        uncertainty = 1 + shared[first].sum() + own.sum()
        surprise = (total - mean[places].sum()) / uncertainty
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
