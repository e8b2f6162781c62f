"""Effects: what each decision of the edits adds to the reward, learnt from every evaluation of the tree."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mctskernel.core.edit import Factor, decided
from mctskernel.core.evaluation import Outcome
from mctskernel.tree.events import EditRecord
from mctskernel.tree.node import Node, Tree

Array = npt.NDArray[Any]

VARIANCE = 0.5
"""Of an effect before anything is observed, in units of the noise's variance."""

GUESSED_NOISE, GUESSES = 0.3, 2
"""The standard deviation of the noise before anything is observed, and how many observations that counts for."""

CORRELATED = 128
"""Effects, the first ones, whose covariance is kept: an observation costs its square."""

NOTHING = 0
"""The number of no decision, whose effect is 0."""

REMEMBERED = 4096
"""Nodes of which it is remembered what their edits change."""


@dataclass(frozen=True)
class _Changes:
    """The decisions that each edit of a node makes, and those that they replace, by number.

    `made` and `replaced` have a row for each edit and are filled up with `NOTHING`; `distinct` are the decisions of
    both, each once. `priors` are the edits'.
    """

    made: Array
    replaced: Array
    distinct: Array
    priors: Array


def factors_of(edit: EditRecord) -> tuple[Factor, ...]:
    """What an edit decides; that its title is done, if it names no factors."""
    return decided(edit.category, edit.title, edit.factors)


class Effects:
    """Bayesian linear regression of rewards on the decisions in effect.

    A reward is the root's plus one effect for each decision on the way to the kernel, plus noise. Effects are
    independent and normal around 0 at first; the noise has an inverse gamma distribution. A kernel that failed counts
    as the median of those that are right: its decisions promise nothing, and how low a failure is rewarded says nothing
    of the kernels before it, which are often the best. The covariance of the first `CORRELATED` effects is kept; the
    others are taken for independent.

    Sources: Rasmussen and Williams, "Gaussian processes for machine learning", 2006, section 2.1; Gelman et al.,
    "Bayesian data analysis", 2013, section 14.2; Graepel et al., "Web-scale Bayesian click-through rate prediction",
    2010, for the independent ones.
    """

    def __init__(self) -> None:
        self._seen = 0
        self._ok_rewards: list[float] = []
        self._places: dict[Factor, int] = {}
        self._mean: Array = np.zeros(CORRELATED)
        self._covariance: Array = np.eye(CORRELATED) * VARIANCE
        self._variance: Array = np.full(CORRELATED, VARIANCE)  # of the effects after the first
        self._squares = 0.0
        self._drawn: Array = np.zeros(1)  # by number; NaN for decisions that were never observed
        self._seed = (0, 0)
        self._numbers: dict[Factor, int] = {}  # of all decisions that were met, from 1 on
        self._observed: list[int] = []  # the numbers of those that were observed, by place
        self._changes: dict[int, _Changes] = {}

    @property
    def noise(self) -> float:
        """The standard deviation of rewards around the sums of effects; above 0."""
        return math.sqrt((GUESSES * GUESSED_NOISE**2 + self._squares) / (GUESSES + self._seen))

    def update(self, tree: Tree) -> None:
        """Learn from the evaluations that finished since the last call, and draw the effects anew.

        Source: Thompson, "On the likelihood that one unknown probability exceeds another in view of the evidence of two
        samples", 1933.
        """
        if self._seen == len(tree.evaluated) and self._seed == (tree.seed, len(tree.nodes)):
            return  # the same would be drawn again
        for node in map(tree.nodes.__getitem__, tree.evaluated[self._seen :]):
            if node.outcome is Outcome.OK:
                insort(self._ok_rewards, node.reward)
            if self._ok_rewards and tree.nodes[0].score is not None:
                median = self._ok_rewards[(len(self._ok_rewards) - 1) // 2]
                counted = node.reward if node.outcome is Outcome.OK else median
                decisions = [Factor(*each) for each in in_effect(tree, node).items()]
                self._observe(decisions, counted - tree.nodes[0].reward)
            self._seen += 1
        self._seed = (tree.seed, len(tree.nodes))
        self._draw(np.random.default_rng(self._seed))

    def weights(self, tree: Tree, node: Node, edits: Sequence[int]) -> Array:
        """The weights of some edits of a node relative to each other: prior times exp(reward / noise).

        The policy that maximises the expected reward less its divergence from the proposer's (Grill et al.,
        "Monte-Carlo tree search as regularized policy optimization", 2020). The rewards are those by the effects drawn
        last; effects that were never observed are drawn here, the same for each call about the same node and tree.
        """
        changes, chosen = self._changes_of(tree, node), np.array(edits, dtype=np.intp)
        gains = self._gains(self._drawn, changes, chosen)
        if np.isnan(gains).any():
            effects = self._drawn.copy()
            unknown = changes.distinct[np.isnan(effects[changes.distinct])]
            normal = np.random.default_rng((*self._seed, node.id)).standard_normal(len(unknown))
            effects[unknown] = self.noise * math.sqrt(VARIANCE) * normal
            gains = self._gains(effects, changes, chosen)
        weights = changes.priors[chosen] * np.exp((gains - gains.max(initial=-np.inf)) / self.noise)
        # An edit without any weight would never be chosen when all others are gone.
        positive: Array = np.maximum(weights, np.finfo(float).tiny)
        return positive

    @staticmethod
    def _gains(effects: Array, changes: _Changes, chosen: Array) -> Array:
        gains: Array = (effects[changes.made[chosen]] - effects[changes.replaced[chosen]]).sum(axis=1)
        return gains

    def _changes_of(self, tree: Tree, node: Node) -> _Changes:
        known = self._changes.get(node.id)
        if known is None or len(known.priors) < len(node.edits):
            if len(self._changes) >= REMEMBERED:
                del self._changes[next(iter(self._changes))]
            levels = in_effect(tree, node)
            factors = [factors_of(edit) for edit in node.edits]
            made = np.full((len(factors), max(map(len, factors), default=0)), NOTHING)
            replaced = made.copy()
            for row, each in enumerate(factors):
                made[row, : len(each)] = [self._number(factor) for factor in each]
            for row, each in enumerate(factors):
                replaced[row, : len(each)] = [
                    self._number(Factor(factor.name, levels[factor.name]))
                    if factor.name in levels
                    else NOTHING
                    for factor in each
                ]
            # In the order of the edits: the numbers depend on which nodes were looked at before.
            distinct = list(dict.fromkeys((*made.ravel().tolist(), *replaced.ravel().tolist())))
            priors = np.array([edit.prior for edit in node.edits])
            known = self._changes[node.id] = _Changes(made, replaced, np.array(distinct), priors)
            missing = len(self._numbers) + 1 - len(self._drawn)
            self._drawn = np.append(self._drawn, np.full(missing, np.nan))
        return known

    def _number(self, decision: Factor) -> int:
        return self._numbers.setdefault(decision, len(self._numbers) + 1)

    def _draw(self, rng: np.random.Generator) -> None:
        known = len(self._places)
        normal, first = rng.standard_normal(known), min(known, CORRELATED)
        # What is next to nothing may have become negative by rounding.
        covariance = self._covariance[:first, :first] + np.eye(first) * (1e-9 * VARIANCE)
        errors = np.concatenate(
            [
                np.linalg.cholesky(covariance) @ normal[:first],
                np.sqrt(self._variance[first:known]) * normal[first:],
            ]
        )
        self._drawn = np.full(len(self._numbers) + 1, np.nan)
        self._drawn[NOTHING] = 0.0
        self._drawn[self._observed] = self._mean[:known] + self.noise * errors

    def _observe(self, decisions: Sequence[Factor], total: float) -> None:
        places = [self._places.setdefault(each, len(self._places)) for each in decisions]
        self._observed += [self._number(each) for each in list(self._places)[len(self._observed) :]]
        if (missing := len(self._places) - len(self._mean)) > 0:
            self._mean = np.append(self._mean, np.zeros(missing + CORRELATED))
            self._variance = np.append(self._variance, np.full(missing + CORRELATED, VARIANCE))
        first = [place for place in places if place < CORRELATED]
        others = [place for place in places if place >= CORRELATED]
        shared, own = self._covariance[:, first].sum(axis=1), self._variance[others]
        uncertainty = 1 + shared[first].sum() + own.sum()
        surprise = (total - self._mean[places].sum()) / uncertainty
        self._squares += float(surprise * surprise * uncertainty)
        self._mean[:CORRELATED] += shared * surprise
        self._mean[others] += own * surprise
        self._covariance -= np.outer(shared, shared / uncertainty)
        self._variance[others] -= own * own / uncertainty


def in_effect(tree: Tree, node: Node) -> dict[str, int | float | str]:
    """What was decided on the way to a node, the starting kernel's settings included: levels by the factor's name."""
    levels: dict[str, int | float | str] = {}
    for number in tree.lineage(node.id):
        edit = tree.made_by(tree.nodes[number])
        for factor in factors_of(edit) if edit is not None else tree.nodes[number].kernel.factors:
            levels[factor.name] = factor.level
    return levels
