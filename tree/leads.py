"""Leads: which child a node's walks keep going to, and how far ahead of the others it is.

A deep tree's walks go the same way again and again, and scoring every child of every node on it is most of their cost.
A score is a value and a bonus that grows with the parent's visits (`mctskernel.tree.scores`), so while only one child
is walked to, what the others can have come to is known without looking at them: even for some visits to come. A walk
follows such children from the root for as long as each of them is sure to be in the lead.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from mctskernel.tree.backup import VALUES, maximum
from mctskernel.tree.node import Node, OpenWays, Tree
from mctskernel.tree.normalisation import NORMALISATIONS
from mctskernel.tree.policy import Policy
from mctskernel.tree.scores import SELECTIONS, Children
from mctskernel.tree.standings import Standing, Standings
from mctskernel.tree.trunk import NEVER, Trunk
from mctskernel.tree.vector import Array
from mctskernel.tree.widening import WIDENINGS

MARGIN = 1e-9
"""By how much a lead must hold. Far above rounding: with leads and without them walks are the same."""

FARTHEST, FARTHEST_OF_A_MEAN = 256, 4
"""Visits to come that are looked at, at the most: a mean seldom stays as high for more than a few."""


@dataclass(slots=True)
class Lead:
    """The child of the greatest score, with its edge and its prior.

    `rest` is the greatest score of the other `ways`, `share` no less than the share in `growth` that any of them has.
    `aside` are the node's visits that were not along the edge. It is sure for visits of the node up to `until`, while
    the child isn't worth less than `worth`.
    """

    ways: OpenWays
    child: int
    edge: int
    prior: float
    rest: float
    share: float
    growth: float
    aside: int
    until: int = NEVER
    worth: float = 0.0


class Leads:
    """What walks by one policy remember of one tree. It saves time and changes no walk."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._rule = SELECTIONS[policy.selection]
        self._value = VALUES[policy.value]
        self._may_fall = self._value is not maximum
        self._farthest = FARTHEST_OF_A_MEAN if self._may_fall else FARTHEST
        self._normalise = NORMALISATIONS[policy.normalisation]
        self._limit = WIDENINGS[policy.widening]
        self._range = (0.0, 0.0)
        self._leads: dict[int, Lead] = {}
        self._standings = Standings(policy)
        self._trunk = Trunk()

    def begin(self, tree: Tree) -> None:
        """Begins a walk, during which the tree stays as it is."""
        if (tree.low, tree.high) != self._range:
            self._range = tree.low, tree.high
            self._leads.clear()
            self._standings.clear()
            self._trunk.clear()
        if not self._may_fall:
            self._trunk.begin(tree)

    def follow(self, tree: Tree, path: list[int], entered: set[int]) -> None:
        """Lengthens a path from the root by children that are sure to be in the lead, to none that was entered."""
        nodes, trunk = tree.nodes, self._trunk
        while True:
            trunk.follow(path)
            node = nodes[path[-1]]
            lead = self._leads.get(node.id)
            if lead is None or node.open_ways is not lead.ways or lead.child in entered:
                return
            if tree.node_statistics.in_flight[node.id]:
                return
            if not self._is_sure(tree, node, lead):
                del self._leads[node.id]
                return
            trunk.note(tree, path, lead)
            path.append(lead.child)

    def scores(self, tree: Tree, node: Node, ways: OpenWays) -> Array | None:
        """The scores of a node's children, if they follow from those before; None if all have to be compared."""
        return self._standings.scores(tree, node, ways)

    def take(self, tree: Tree, node: Node, ways: OpenWays, scores: Array, compared: Children | None) -> None:
        """Takes the child of the greatest score for the lead, if it was that when the children were last compared.

        The scores come of a comparison, or of `scores`. Not with something in flight below the node, or with another
        node that has an edge to one of its children.
        """
        if tree.node_statistics.in_flight[node.id] or node.shares_children:
            return
        standing, was_best = self._standings.take(tree, node, ways, scores, compared)
        if was_best:
            lead = self._lead(tree, node, standing, scores)
            if self._prolong(tree, node, lead):
                self._leads[node.id] = lead

    def _lead(self, tree: Tree, node: Node, standing: Standing, scores: Array) -> Lead:
        best, score = standing.best, scores[standing.best]
        scores[best] = float("-inf")
        rest = scores.max().item()
        scores[best] = score
        return Lead(
            ways=standing.ways,
            child=standing.child,
            edge=standing.edge,
            prior=standing.ways.priors.item(best),
            rest=rest,
            share=standing.greatest_share,
            growth=self._policy.exploration * self._rule.growth(tree.node_statistics.visits[node.id]),
            aside=standing.aside,
        )

    def _is_sure(self, tree: Tree, node: Node, lead: Lead) -> bool:
        statistics = tree.node_statistics
        seen = statistics.visits[node.id]
        if seen - tree.edge_statistics.visits[lead.edge] != lead.aside:
            return False
        has_fallen = self._may_fall and self._value(statistics, lead.child) < lead.worth
        return (seen <= lead.until and not has_fallen) or self._prolong(tree, node, lead)

    def _prolong(self, tree: Tree, node: Node, lead: Lead) -> bool:
        """Finds visits of the node up to which a lead is sure to hold from now on. False if it doesn't hold now.

        It is if its child's value doesn't fall and no child is added: with every visit the child's score falls, and
        what the others can have come to rises. So what holds for some visits to come holds for fewer.
        """
        if not tree.low < tree.high:
            return False
        statistics = tree.node_statistics
        lead.worth = worth = self._value(statistics, lead.child)
        value, visits = float(self._normalise(worth, tree.low, tree.high)), statistics.visits[node.id]
        if not self._outscores(lead, value, visits):
            return False
        lead.until = NEVER
        if node.children < self._limit(visits, self._policy):
            # Overdue: a child is added as soon as the node is ready again.
            return not node.ready
        full = _last(
            range(visits, visits + self._farthest),
            lambda seen: node.children >= self._limit(seen, self._policy),
        )
        lead.until = _last(range(visits, full + 1), lambda seen: self._outscores(lead, value, seen))
        return True

    def _outscores(self, lead: Lead, value: float, visits: int) -> bool:
        """Whether the child's score is the greatest when its node has so many visits, all new ones along the edge."""
        rule, edge_visits = self._rule, visits - lead.aside
        growth = self._policy.exploration * rule.growth(visits)
        score = value + growth * rule.share(lead.prior, edge_visits or 1)
        return bool(score > lead.rest + (growth - lead.growth) * lead.share + MARGIN)


def _last(numbers: range, holds: Callable[[int], bool]) -> int:
    """The last number that it holds of: it does of the first, and of none after one that it doesn't hold of."""
    if holds(numbers[-1]):
        return numbers[-1]
    return numbers[bisect_left(numbers, 1, key=lambda number: not holds(number)) - 1]
