"""Leads: which child a node's walks keep going to, and how far ahead of the others it is.

A deep tree's walks go the same way again and again, and scoring every child of every node on it is most of their cost.
A score is a value and a bonus that grows with the parent's visits (`mctskernel.tree.scores`), so while only one child
is walked to, what the others can have come to is known without looking at them: even for some visits to come.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from mctskernel.tree.backup import VALUES, maximum
from mctskernel.tree.node import Lead, Node, OpenWays, Tree
from mctskernel.tree.normalisation import NORMALISATIONS
from mctskernel.tree.policy import Policy
from mctskernel.tree.scores import SELECTIONS, Children
from mctskernel.tree.vector import Array
from mctskernel.tree.widening import WIDENINGS

MARGIN = 1e-9
"""By how much a lead must hold. Far above rounding: with leads and without them walks are the same."""


FARTHEST = 1 << 20
"""Visits to come that are looked at, at the most."""


class Leads:
    """The leads of one walk, during which the tree stays as it is. Nothing is in flight below a lead."""

    def __init__(self, tree: Tree, policy: Policy) -> None:
        self._tree, self._policy = tree, policy
        self._rule = SELECTIONS[policy.selection]
        self._value = VALUES[policy.value]
        self._may_fall = self._value is not maximum
        self._low, self._high = tree.low, tree.high
        self._normalise = NORMALISATIONS[policy.normalisation]
        self._visits = tree.node_statistics.visits.view
        self._in_flight = tree.node_statistics.in_flight.view
        self._edge_visits = tree.edge_statistics.visits.view

    def sure(self, node: Node) -> int | None:
        """The child to go to, where that is known without a look at anything else; None: where it isn't."""
        lead = node.open_ways.lead if node.open_ways is not None else None
        if lead is None or self._in_flight.item(node.id):
            return None
        visits = self._visits.item(node.id)
        if visits > lead.until or self._low != lead.low or self._high != lead.high:
            return None
        if visits - lead.visits != self._edge_visits.item(lead.edge) - lead.edge_visits:
            return None
        if self._may_fall and self._value(self._tree.node_statistics, lead.child) < lead.value:
            return None
        return lead.child

    def take(self, node: Node, ways: OpenWays, children: Children, scores: Array) -> Lead:
        """The lead of the child whose score is the greatest."""
        best = int(scores.argmax())
        edge = int(ways.edges[best])
        rest, shares = scores.copy(), np.array(self._rule.share(children.prior, children.visits))
        rest[best], shares[best] = -np.inf, 0.0
        lead = Lead(
            child=int(ways.children[best]),
            edge=edge,
            prior=float(children.prior[best]),
            visits=self._visits.item(node.id),
            edge_visits=self._edge_visits.item(edge),
            rest=float(rest.max()),
            share=float(shares.max()),
            growth=self._policy.exploration * self._rule.growth(children.parent_visits),
            low=self._tree.low,
            high=self._tree.high,
        )
        return self.prolong(node, lead)

    def hold(self, node: Node, lead: Lead) -> bool:
        """Whether the child's score is still the greatest. False if that isn't known."""
        tree = self._tree
        if lead.low != tree.low or lead.high != tree.high:
            return False
        visits, edge_visits = self._visits.item(node.id), self._edge_visits.item(lead.edge)
        if visits - lead.visits != edge_visits - lead.edge_visits:
            return False
        return self._is_ahead(lead, visits, self._value(tree.node_statistics, lead.child))

    def prolong(self, node: Node, lead: Lead) -> Lead:
        """A lead that holds, with the visits of the node up to which it is sure to, from now on.

        It is if its child's value doesn't fall and no child is added: with every visit the child's score falls, and
        what the others can have come to rises.
        """
        limit, visits, step = WIDENINGS[self._policy.widening], self._visits.item(node.id), 1
        value = self._value(self._tree.node_statistics, lead.child)
        while (
            node.children >= limit(visits + step, self._policy)
            and self._is_ahead(lead, visits + step, value)
            and step < FARTHEST
        ):
            visits, step = visits + step, 2 * step
        return replace(lead, value=float(value), until=visits)

    def _is_ahead(self, lead: Lead, visits: int, value: Any) -> bool:
        """Whether the child's score is the greatest when the node has these visits and the child this value."""
        if lead.low == lead.high:
            return False
        edge_visits = lead.edge_visits + visits - lead.visits
        growth = self._policy.exploration * self._rule.growth(visits)
        score = self._normalise(value, lead.low, lead.high) + growth * self._rule.share(
            lead.prior, edge_visits or 1
        )
        return bool(score > lead.rest + (growth - lead.growth) * lead.share + MARGIN)
