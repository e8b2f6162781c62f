"""Priors: the weights of a node's edits against each other, before any of them is tried and while they compete."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from mctskernel.tree.policy import Policy
from mctskernel.tree.vector import Array


def given(weights: Array, expected: Array, spread: float, policy: Policy) -> Array:  # noqa: ARG001 - a Prior
    """The weights that the proposer gave."""
    return weights


def learnt(weights: Array, expected: Array, spread: float, policy: Policy) -> Array:
    """The proposer's weights times exp(expected / (temperature * spread)), up to a factor; so of no unit.

    That is the softmax policy over what edits are expected to be worth, with the proposer's as its base measure: what
    maximises the expected worth less temperature * spread * its Kullback-Leibler divergence from the proposer's.
    Source: Grill et al., "Monte-Carlo tree search as regularized policy optimization", 2020, with the divergence the
    other way round, which has this closed form.
    """
    if spread <= 0:
        return weights
    reweighted: Array = weights * np.exp((expected - expected.max()) / (policy.prior_temperature * spread))
    # An edit of no weight at all would compete with nothing when all others are gone.
    return np.maximum(reweighted, np.finfo(float).tiny)


def thompson(weights: Array, drawn: Array, noise: float, policy: Policy) -> Array:
    """The same with rewards that are drawn by what is believed of them, in units of the noise, anew for each walk.

    So what is little known is tried now and then, and several edits that are chosen before any of them is evaluated
    differ.
    Source: Kandasamy et al., "Parallelised Bayesian optimisation via Thompson sampling", 2018.
    """
    return learnt(weights, drawn, noise, policy)


Prior = Callable[[Array, Array, float, Policy], Array]
"""Takes weights above 0, the rewards that the edits' kernels are expected to have, and their unit."""

PRIORS: Mapping[str, Prior] = {"given": given, "learnt": learnt, "thompson": thompson}
