"""Leads: which child a node's walks keep going to, and how far ahead of the others it is.

A deep tree's walks go the same way again and again, and scoring every child of every node on it is most of their cost.
A score is a value and a bonus that grows with the parent's visits (`mctskernel.tree.scores`), so while only one child
is walked to, what the others can have come to is known without looking at them.
"""

from __future__ import annotations

import numpy as np

from mctskernel.tree.backup import VALUES
from mctskernel.tree.node import Lead, Node, OpenWays, Tree
from mctskernel.tree.normalisation import NORMALISATIONS
from mctskernel.tree.policy import Policy
from mctskernel.tree.scores import SELECTIONS, Children
from mctskernel.tree.vector import Array

MARGIN = 1e-9
"""By how much a lead must hold. Far above rounding: with leads and without them walks are the same."""


class Leads:
    """The leads of one walk, during which the tree stays as it is. Nothing is in flight below a lead."""

    def __init__(self, tree: Tree, policy: Policy) -> None:
        self._tree, self._policy = tree, policy
        self._rule = SELECTIONS[policy.selection]
        self._value = VALUES[policy.value]
        self._normalise = NORMALISATIONS[policy.normalisation]
        self._visits = tree.node_statistics.visits.view
        self._edge_visits = tree.edge_statistics.visits.view

    def take(self, node: Node, ways: OpenWays, children: Children, scores: Array) -> Lead:
        """The lead of the child whose score is the greatest."""
        best = int(scores.argmax())
        edge = int(ways.edges[best])
        others = np.arange(len(scores)) != best
        shares = np.broadcast_to(self._rule.share(children.prior, children.visits), scores.shape)
        return Lead(
            child=int(ways.children[best]),
            edge=edge,
            prior=float(children.prior[best]),
            visits=self._visits.item(node.id),
            edge_visits=self._edge_visits.item(edge),
            rest=float(scores.max(initial=-np.inf, where=others)),
            share=float(shares.max(initial=0.0, where=others)),
            growth=self._policy.exploration * self._rule.growth(children.parent_visits),
            low=self._tree.low,
            high=self._tree.high,
        )

    def hold(self, node: Node, lead: Lead) -> bool:
        """Whether the child's score is still the greatest. False if that isn't known."""
        tree, low, high = self._tree, lead.low, lead.high
        if low != tree.low or high != tree.high or low == high:
            return False
        visits, edge_visits = self._visits.item(node.id), self._edge_visits.item(lead.edge)
        if visits - lead.visits != edge_visits - lead.edge_visits:
            return False
        growth = self._policy.exploration * self._rule.growth(visits)
        value = self._normalise(self._value(tree.node_statistics, lead.child), low, high)
        score = value + growth * self._rule.share(lead.prior, edge_visits or 1)
        return bool(score > lead.rest + (growth - lead.growth) * lead.share + MARGIN)
