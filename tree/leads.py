"""Leads: which child a node's walks keep going to, and how far ahead of the others it is.

A deep tree's walks go the same way again and again, and scoring every child of every node on it is most of their cost.
A score is a value and a bonus that grows with the parent's visits (`mctskernel.tree.scores`), so while only one child
is walked to, what the others can have come to is known without looking at them: even for some visits to come. A walk
follows such children from the root for as long as each of them is sure to be in the lead.
"""

from __future__ import annotations

from dataclasses import dataclass

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

NEVER = -1


@dataclass(slots=True)
class Lead:
    """The child of the greatest score, with its edge and its prior.

    `rest` is the greatest score of the other `ways`, `share` the greatest share in `growth` that any of them has.
    `aside` are the node's visits that were not along the edge. It is sure for visits of the node up to `until`, which
    is so many visits `ahead`, while the child isn't worth less than `worth`.
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
    ahead: int = 0
    worth: float = 0.0


class Leads:
    """What walks by one policy remember of one tree. It saves time and changes no walk."""

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

    def begin(self, tree: Tree) -> None:
        """Begins a walk, during which the tree stays as it is."""
        if (tree.low, tree.high) != self._range:
            self._range = tree.low, tree.high
            self._leads.clear()

    def follow(self, tree: Tree, path: list[int], entered: set[int]) -> None:
        """Lengthens a path from the root by children that are sure to be in the lead, to none that was entered."""
        nodes, leads, statistics = tree.nodes, self._leads, tree.node_statistics
        visits, in_flight = statistics.visits.cells, statistics.in_flight.cells
        edge_visits = tree.edge_statistics.visits.cells
        number = path[-1]
        while (lead := leads.get(number)) is not None and nodes[number].open_ways is lead.ways:
            seen, child = visits[number], lead.child
            if in_flight[number] or child in entered:
                return
            is_sure = seen - edge_visits[lead.edge] == lead.aside and (
                (seen <= lead.until and not (self._may_fall and self._value(statistics, child) < lead.worth))
                or self._prolong(tree, nodes[number], lead)
            )
            if not is_sure:
                del leads[number]
                return
            path.append(child)
            entered.add(child)
            number = child

    def take(self, tree: Tree, node: Node, ways: OpenWays, children: Children, scores: Array) -> None:
        """Takes the child of the greatest score for the lead, if it was that when the children were last compared.

        Not with something in flight below the node, or with another node that has an edge to one of its children.
        """
        if tree.node_statistics.in_flight[node.id] or node.shares_children:
            return
        best = scores.argmax()
        child = ways.children.item(best)
        if self._favourites.get(node.id) != child:
            self._favourites[node.id] = child
            return
        edge, others = ways.edges.item(best), scores.copy()
        others[best] = float("-inf")
        lead = Lead(
            ways=ways,
            child=child,
            edge=edge,
            prior=children.prior.item(best),
            rest=others.max().item(),
            share=self._rule.share(children.prior, children.visits).max().item(),
            growth=self._policy.exploration * self._rule.growth(children.parent_visits),
            aside=tree.node_statistics.visits[node.id] - tree.edge_statistics.visits[edge],
        )
        if self._prolong(tree, node, lead):
            self._leads[node.id] = lead

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
        ahead = min(2 * lead.ahead + 1, FARTHEST)
        while ahead and not self._will_hold(node, lead, value, visits + ahead):
            ahead //= 2
        lead.ahead, lead.until = ahead, visits + ahead if ahead else NEVER
        if ahead:
            return True
        admits = node.ready and node.children < self._limit(visits, self._policy)
        return not admits and self._outscores(lead, value, visits)

    def _will_hold(self, node: Node, lead: Lead, value: float, visits: int) -> bool:
        """Whether walks will pass a node by the lead when it has so many visits, even if it is ready by then."""
        return node.children >= self._limit(visits, self._policy) and self._outscores(lead, value, visits)

    def _outscores(self, lead: Lead, value: float, visits: int) -> bool:
        """Whether the child's score is the greatest when its node has so many visits, all new ones along the edge."""
        rule, edge_visits = self._rule, visits - lead.aside
        growth = self._policy.exploration * rule.growth(visits)
        score = value + growth * rule.share(lead.prior, edge_visits or 1)
        return bool(score > lead.rest + (growth - lead.growth) * lead.share + MARGIN)
