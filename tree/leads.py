"""Leads: which child a node's walks keep going to, and how far ahead of the others it is.

A deep tree's walks go the same way again and again, and scoring every child of every node on it is most of their cost.
A score is a value and a bonus that grows with the parent's visits (`mctskernel.tree.scores`), so while only one child
is walked to, what the others can have come to is known without looking at them: even for some visits to come. A walk
follows the chain of such children from the root and asks of all of them at once where it has to look.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from mctskernel.tree.backup import VALUES, maximum
from mctskernel.tree.node import Node, OpenWays, Tree
from mctskernel.tree.normalisation import NORMALISATIONS
from mctskernel.tree.policy import Policy
from mctskernel.tree.scores import SELECTIONS, Children
from mctskernel.tree.vector import Array
from mctskernel.tree.widening import WIDENINGS

MARGIN = 1e-9
"""By how much a lead must hold. Far above rounding: with leads and without them walks are the same."""


FARTHEST = 1 << 20
"""Visits to come that are looked at, at the most."""


@dataclass(frozen=True, slots=True)
class Lead:
    """The child of the greatest score, with its edge and its prior, when the node and the edge had these visits.

    `rest` is the greatest score of the other `ways`, `share` the greatest share in `growth` that any of them has.
    """

    ways: OpenWays
    child: int
    edge: int
    prior: float
    visits: int
    edge_visits: int
    rest: float
    share: float
    growth: float


class Leads:
    """What walks by one policy remember of one tree. It saves time and changes no walk.

    Of a node with a lead, as arrays by node: the edge that leads to the child; its visits that were not along that
    edge; and what the lead is sure for: visits of the node up to `until`, while the child isn't worth less than
    `worth`.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._rule = SELECTIONS[policy.selection]
        self._value = VALUES[policy.value]
        self._may_fall = self._value is not maximum
        self._normalise = NORMALISATIONS[policy.normalisation]
        self._limit = WIDENINGS[policy.widening]
        self._range = (0.0, 0.0)
        self._leads: dict[int, Lead] = {}
        self._favourites: dict[int, int] = {}
        self._edge, self._aside, self._until = np.zeros((3, 0), np.int64)
        self._worth = np.zeros(0)
        self._begin, self._chain, self._unsure = 0, [0], [0]

    def begin(self, tree: Tree) -> None:
        """Begins a walk, during which the tree stays as it is."""
        if (tree.low, tree.high) != self._range:
            self._range = tree.low, tree.high
            self._leads.clear()
        if len(tree.nodes) > len(self._edge):
            more = np.zeros(2 * len(tree.nodes) - len(self._edge), np.int64)
            self._edge, self._aside = np.append(self._edge, more), np.append(self._aside, more)
            self._until, self._worth = np.append(self._until, more), np.append(self._worth, 1.0 * more)
        self._chain = []

    def ahead(self, tree: Tree, level: int, node: int) -> list[int]:
        """Where a walk goes on to from the node at this level of it, as far as that is known without a look."""
        place = level - self._begin
        if not 0 <= place < len(self._chain) or self._chain[place] != node:
            self._follow(tree, level, node)
            place = 0
        return self._chain[place + 1 : self._unsure[bisect_left(self._unsure, place)] + 1]

    def renew(self, tree: Tree, node: Node, ways: OpenWays) -> int | None:
        """The child that is still in the lead, which will be known for some time; None if another may be.

        There must be nothing in flight below the node.
        """
        lead = self._leads.get(node.id)
        if lead is None or lead.ways is not ways:
            return None
        visits = tree.node_statistics.visits[node.id]
        edge_visits = tree.edge_statistics.visits[lead.edge]
        if visits - lead.visits == edge_visits - lead.edge_visits and self._prolong(tree, node, lead):
            return lead.child
        del self._leads[node.id]
        return None

    def take(self, tree: Tree, node: Node, ways: OpenWays, children: Children, scores: Array) -> None:
        """Takes the child of the greatest score for the lead, if it was that when the children were last compared.

        There must be nothing in flight below the node, and no other node with an edge to its children.
        """
        best = int(scores.argmax())
        child, edge = int(ways.children[best]), int(ways.edges[best])
        if self._favourites.get(node.id) != child:
            self._favourites[node.id] = child
            return
        if tree.nodes[child].parent != node.id:
            # A chain of leads ends because each of them is one level deeper than the one before.
            return
        lead = Lead(
            ways=ways,
            child=child,
            edge=edge,
            prior=float(children.prior[best]),
            visits=tree.node_statistics.visits[node.id],
            edge_visits=tree.edge_statistics.visits[edge],
            rest=float(np.partition(scores, -2)[-2]) if len(scores) > 1 else float("-inf"),
            share=float(self._rule.share(children.prior, children.visits).max()),
            growth=self._policy.exploration * self._rule.growth(children.parent_visits),
        )
        if self._prolong(tree, node, lead):
            self._leads[node.id] = lead
            self._edge[node.id], self._aside[node.id] = edge, lead.visits - lead.edge_visits

    def _follow(self, tree: Tree, level: int, node: int) -> None:
        """Makes the chain of leads from a node on, and the places on it where a walk has to look; the end is one."""
        nodes, leads, chain = tree.nodes, self._leads, [node]
        while (lead := leads.get(node)) is not None and nodes[node].open_ways is lead.ways:
            node = lead.child
            chain.append(node)
        self._begin, self._chain, self._unsure = level, chain, [len(chain) - 1]
        if len(chain) > 1:
            path = np.array(chain)
            self._unsure = [*np.flatnonzero(~self._sure(tree, path[:-1], path[1:])).tolist(), len(chain) - 1]

    def _sure(self, tree: Tree, nodes: Array, children: Array) -> Array:
        """Of nodes with leads, whether these are sure."""
        statistics = tree.node_statistics
        visits = statistics.visits.view[nodes]
        sure: Array = visits <= self._until[nodes]
        sure &= visits - tree.edge_statistics.visits.view[self._edge[nodes]] == self._aside[nodes]
        if statistics.in_flight[0]:
            sure &= statistics.in_flight.view[nodes] == 0
        if self._may_fall:
            sure &= self._value(statistics, children) >= self._worth[nodes]
        return sure

    def _prolong(self, tree: Tree, node: Node, lead: Lead) -> bool:
        """Finds the visits of the node up to which a lead is sure to hold from now on. False if it doesn't hold now.

        It is if its child's value doesn't fall and no child is added: with every visit the child's score falls, and
        what the others can have come to rises.
        """
        if not tree.low < tree.high:
            return False
        policy, rule = self._policy, self._rule
        worth = self._value(tree.node_statistics, lead.child)
        value = float(self._normalise(worth, tree.low, tree.high))
        visits: int = tree.node_statistics.visits[node.id]
        until, step = -1, 0
        while step < FARTHEST:
            growth = policy.exploration * rule.growth(visits + step)
            edge_visits = lead.edge_visits + visits + step - lead.visits
            score = value + growth * rule.share(lead.prior, edge_visits or 1)
            if not score > lead.rest + (growth - lead.growth) * lead.share + MARGIN:
                break
            until = visits + step
            step = 2 * step + 1
            if node.children < self._limit(visits + step, policy):
                break
        self._until[node.id], self._worth[node.id] = until, worth
        return until >= visits
