"""An additive model: rewards as sums of effects, learnt one observation after the other."""

from __future__ import annotations

from collections.abc import Sequence

from mctskernel.tree.vector import Vector


class AdditiveModel:
    """Linear regression on which of many effects are present, with noise of variance 1.

    Effects are independent and normal around 0 beforehand, with the given variance; afterwards they are taken for
    independent still, so that an observation costs as many steps as it has effects.
    Source: Graepel et al., "Web-scale Bayesian click-through rate prediction for sponsored search advertising in
    Microsoft's Bing search engine", 2010, with the identity for its link.
    """

    def __init__(self, variance: float) -> None:
        self._prior = variance
        self.mean, self._variance = Vector("float64"), Vector("float64")

    def add_effect(self) -> None:
        """One more effect, with the next number."""
        self.mean.append(0.0)
        self._variance.append(self._prior)

    def observe(self, effects: Sequence[int], total: float) -> None:
        """Takes in a sum of effects, different ones."""
        mean, variance = self.mean.view, self._variance.view
        present = list(effects)
        own = variance[present]
        uncertainty = 1 + own.sum()
        mean[present] += own * ((total - mean[present].sum()) / uncertainty)
        variance[present] -= own * own / uncertainty
