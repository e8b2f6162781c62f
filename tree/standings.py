"""Standings: what a node's children came to when they were last compared.

A walk that passes a node changes one child of it. So the next comparison needs the terms of that child's score alone,
beside what is remembered of the others.
"""

from __future__ import annotations

from dataclasses import dataclass

from mctskernel.tree.backup import VALUES
from mctskernel.tree.node import Node, OpenWays, Tree
from mctskernel.tree.normalisation import NORMALISATIONS
from mctskernel.tree.policy import Policy
from mctskernel.tree.scores import SELECTIONS, Children
from mctskernel.tree.vector import Array


@dataclass(slots=True)
class Standing:
    """The terms of the scores of a node's `ways`, and which of them is `best`, with its edge.

    `aside` are the node's visits that were not along that edge: as long as they stay the same, nothing but that child
    has changed. No share is above `greatest_share`: visits make it less.
    """

    ways: OpenWays
    values: Array
    shares: Array
    greatest_share: float
    best: int
    child: int
    edge: int
    aside: int


class Standings:
    """Of nodes none of whose children can be reached from elsewhere, by one policy and the same range of rewards."""

    def __init__(self, policy: Policy) -> None:
        self._exploration = policy.exploration
        self._rule = SELECTIONS[policy.selection]
        self._value = VALUES[policy.value]
        self._normalise = NORMALISATIONS[policy.normalisation]
        self._standings: dict[int, Standing] = {}

    def clear(self) -> None:
        """Forgets all, as the range of rewards has changed."""
        self._standings.clear()

    def scores(self, tree: Tree, node: Node, ways: OpenWays) -> Array | None:
        """The scores of a node's ways; None if more than one child may have changed. The caller may overwrite them."""
        known, statistics = self._standings.get(node.id), tree.node_statistics
        if known is None or known.ways is not ways or node.shares_children or not tree.low < tree.high:
            return None
        visits, along = statistics.visits[node.id], tree.edge_statistics.visits[known.edge]
        if visits - along != known.aside or statistics.in_flight[node.id]:
            return None
        worth = self._value(statistics, known.child)
        known.values[known.best] = self._normalise(worth, tree.low, tree.high)
        known.shares[known.best] = self._rule.share(ways.priors[known.best], max(along, 1))
        scores: Array = known.values + self._exploration * self._rule.growth(visits) * known.shares
        return scores

    def take(
        self, tree: Tree, node: Node, ways: OpenWays, scores: Array, compared: Children | None
    ) -> tuple[Standing, bool]:
        """Keeps whose score is the greatest; says too whether it was the same child the last time.

        The scores come of `compared`, or are what `scores` said.
        """
        before, best = self._standings.get(node.id), int(scores.argmax())
        child, edge = ways.children.item(best), ways.edges.item(best)
        aside = tree.node_statistics.visits[node.id] - tree.edge_statistics.visits[edge]
        was_best = before is not None and before.child == child
        if compared is not None:
            shares = self._rule.share(compared.prior, compared.visits)
            found = Standing(ways, compared.value, shares, shares.max().item(), best, child, edge, aside)
            self._standings[node.id] = found
            return found, was_best
        found = self._standings[node.id]
        found.best, found.child, found.edge, found.aside = best, child, edge, aside
        return found, was_best
