"""Guidance: what a walk is told beside the statistics of the nodes it passes: edits elsewhere, dead ends, restarts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mctskernel.tree.edit_statistics import EditStatistics
from mctskernel.tree.estimates import ESTIMATES
from mctskernel.tree.first_play import FIRST_PLAYS, at_once
from mctskernel.tree.mixing import MIXINGS, unmixed
from mctskernel.tree.node import Node, OpenWays, Tree
from mctskernel.tree.policy import Policy
from mctskernel.tree.priors import PRIORS, given, thompson
from mctskernel.tree.pruning import PRUNINGS, Unpruned
from mctskernel.tree.restarts import NO_DETOUR, RESTARTS, Stagnation, nowhere
from mctskernel.tree.rollouts import Prospects, rolls_out
from mctskernel.tree.vector import Array


@dataclass(frozen=True)
class Rival:
    """The untried edit that competes with its node's children, the one that is worth most.

    Beside its worth, the reward expected of its kernel, and the weight that its proposer gave it.
    """

    worth: float
    expected: float
    weight: float


Closed = Callable[[Tree, Node, Array], Array | None]
"""Says of some children of a node which are passed over; None: none."""


def nothing_closed(tree: Tree, node: Node, children: Array) -> Array | None:  # noqa: ARG001 - a Closed
    """No child."""
    return None


class Guidance:
    """What the policies that look beyond a node say of one tree, as of the last `follow`.

    What the tree's policy doesn't name costs nothing.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._estimate = ESTIMATES[policy.estimate]
        self._prior = PRIORS[policy.prior]
        self._mixing = MIXINGS[policy.mixing]
        self._first_play = FIRST_PLAYS[policy.first_play]
        self._restart = RESTARTS[policy.restart]
        self._pruning = PRUNINGS[policy.pruning]()
        self._prospects = Prospects(policy) if rolls_out(policy) else None
        self._statistics = EditStatistics(policy.shrinkage)
        self._expectations: dict[int, Array] = {}
        self._priors: dict[int, tuple[OpenWays, Array]] = {}
        self._stagnation = Stagnation()
        self._detour = NO_DETOUR

    def follow(self, tree: Tree) -> None:
        """Takes in what has happened to the tree since the last call."""
        if self._reweights or self._mixing is not unmixed or self._first_play is not at_once:
            before = self._statistics.version
            self._statistics.follow(tree)
            if self._draws:
                self._statistics.draw(np.random.default_rng((tree.seed, len(tree.nodes))))
            if self._draws or self._statistics.version != before:
                self._expectations.clear()
                self._priors.clear()
        self._pruning.follow(tree)
        if self._prospects is not None:
            self._prospects.follow(tree)
        if self._restart is not nowhere:
            self._stagnation.follow(tree)
            restarting = self._stagnation.is_restarting(tree)
            self._detour = self._restart(tree, self._stagnation.best) if restarting else NO_DETOUR

    @property
    def is_silent(self) -> bool:
        """Whether walks go by the statistics of the nodes that they pass and by nothing else, at present."""
        plain = self._mixing is unmixed and self._first_play is at_once and not self._reweights
        return plain and self._prospects is None and not self.closes and not self.ignores_values

    @property
    def ignores_values(self) -> bool:
        """Whether a walk goes by priors and visits alone, at present."""
        return self._detour.ignores_values

    @property
    def closes(self) -> bool:
        """Whether anything may be passed over at present."""
        return self._prunes or self._detour.closed is not None

    def closed(self, tree: Tree, node: Node, children: Array) -> Array | None:
        """Of some children of a node, which are passed over until nothing else is left; None: none."""
        if not self.closes:
            return None
        closed = self._pruning.closed(tree, node, children)
        return closed if self._detour.closed is None else closed | (children == self._detour.closed)

    def mixed(self, tree: Tree, node: Node, edges: Array, worths: Array, visits: Array) -> Array:
        """The worths of children, each mixed with what its rollouts and what its edit's like came to."""
        if self._prospects is not None:
            worths = self._prospects.mixed(tree, tree.edge_statistics.child.view[edges], worths)
        if self._mixing is unmixed:
            return worths
        share = self._mixing(visits, self.policy)
        expected = self._expected(tree, node)[self._statistics.edits_of(edges)]
        mixture: Array = share * expected + (1 - share) * worths
        return mixture

    def priors(self, tree: Tree, node: Node, ways: OpenWays, rival: Rival | None) -> Array:
        """Of open ways and of the untried edit that competes with them, last, if one does; they sum to 1."""
        if not self._reweights and rival is None:
            return ways.priors
        known_ways, known = self._priors.get(node.id, (None, None))
        if known is not None and known_ways is ways and rival is None:
            return known
        weights = tree.edge_statistics.prior.view[ways.edges]
        if rival is not None:
            weights = np.append(weights, rival.weight)
        if self._reweights:
            expected = self._expected(tree, node)[self._statistics.edits_of(ways.edges)]
            if rival is not None:
                expected = np.append(expected, rival.expected)
            weights = self._prior(weights, expected, self._unit, self.policy)
        priors: Array = weights / weights.sum()
        if rival is None:
            self._priors[node.id] = ways, priors
        return priors

    def rival(self, tree: Tree, node: Node) -> Rival | None:
        """What competes with the node's children; None if an edit is tried as soon as widening admits it."""
        if self._first_play is at_once or not node.untried or node.score is None:
            return None
        expected = self._expected(tree, node)[node.untried]
        worths = self._first_play(expected, node.score.reward)
        best = int(worths.argmax())
        return Rival(float(worths[best]), float(expected[best]), node.priors[node.untried[best]])

    def weights(self, tree: Tree, node: Node, edits: Sequence[int]) -> Array:
        """The weights of some untried edits of a node against each other, of any scale."""
        weights = np.array([node.priors[edit] for edit in edits])
        if not self._reweights:
            return weights
        expected = self._expected(tree, node)[list(edits)]
        return self._prior(weights, expected, self._unit, self.policy)

    @property
    def _prunes(self) -> bool:
        return not isinstance(self._pruning, Unpruned)

    @property
    def _reweights(self) -> bool:
        return self._prior is not given

    @property
    def _draws(self) -> bool:
        return self._prior is thompson

    @property
    def _unit(self) -> float:
        return self._statistics.noise if self._draws else self._statistics.spread

    def _expected(self, tree: Tree, node: Node) -> Array:
        """The rewards expected of a node's edits, by their number."""
        known = self._expectations.get(node.id)
        if known is None or len(known) < len(node.edits):
            known = self._expectations[node.id] = self._looked_up(tree, node)
        return known

    def _looked_up(self, tree: Tree, node: Node) -> Array:
        if not self._draws:
            return self._estimate(self._statistics, tree, node)
        # A new draw for each kernel, and no other for whoever asks again: a search that is resumed or one whose edits
        # are predicted meanwhile.
        rng = np.random.default_rng((tree.seed, len(tree.nodes), node.id))
        rewards: Array = tree.node_statistics.reward[node.id] + self._statistics.drawn_effect(tree, node, rng)
        return rewards
