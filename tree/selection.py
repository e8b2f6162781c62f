"""Selection: the walk from the root to the node to expand, and the scores that choose among children."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from mctskernel.tree.backup import VALUES
from mctskernel.tree.node import Node, OpenWays, Tree
from mctskernel.tree.normalisation import NORMALISATIONS
from mctskernel.tree.policy import Policy
from mctskernel.tree.vector import Array
from mctskernel.tree.widening import WIDENINGS


@dataclass(frozen=True)
class Children:
    """What a score may look at, an element for each child that competes.

    `value` is normalised; `visits` are traversals of the edge, at least 1; `prior` sums to 1. Traversals in
    flight count as lost visits (virtual loss) in all but the prior.
    """

    value: Array
    visits: Array
    prior: Array
    parent_visits: float


def uct(children: Children, policy: Policy) -> Array:
    """value + c * sqrt(ln N / n).

    Source: Kocsis and Szepesvári, "Bandit based Monte-Carlo planning", 2006, with c free.
    """
    bonus: Array = np.sqrt(math.log(children.parent_visits) / children.visits)
    return children.value + policy.exploration * bonus


def puct(children: Children, policy: Policy) -> Array:
    """value + c * prior * sqrt(N) / (1 + n).

    Source: Silver et al., "Mastering the game of Go without human knowledge", 2017.
    """
    bonus: Array = children.prior * math.sqrt(children.parent_visits) / (1 + children.visits)
    return children.value + policy.exploration * bonus


def greedy(children: Children, policy: Policy) -> Array:  # noqa: ARG001
    """The value alone."""
    return children.value


SelectionScore = Callable[[Children, Policy], Array]

SELECTIONS: Mapping[str, SelectionScore] = {"uct": uct, "puct": puct, "greedy": greedy}


@dataclass(frozen=True)
class Selection:
    """The nodes from the root to the one to expand, which is the last."""

    path: tuple[int, ...]

    @property
    def node(self) -> int:
        """The node to expand."""
        return self.path[-1]


def select(tree: Tree, policy: Policy) -> Selection | None:
    """Walks to the node to expand; None if no node can be expanded now. Changes nothing.

    A node is expanded while it has fewer children than widening allows, or when there is no child to go to.
    Children without a ready node below are passed over, no node is entered twice, ties go to the older edge.
    """
    if not tree.nodes or not tree.node_statistics.ready[0]:
        return None
    limit = WIDENINGS[policy.widening]
    path, entered = [0], {0}
    while path:
        node = tree.nodes[path[-1]]
        visits = tree.node_statistics.visits[node.id] + tree.node_statistics.in_flight[node.id]
        if node.ready and node.children < limit(visits, policy):
            return Selection(tuple(path))
        child = _best_child(tree, node, entered, policy)
        if child is not None:
            path.append(child)
            entered.add(child)
        elif node.ready:
            return Selection(tuple(path))
        else:
            # A transposition led to where every way on is on the path already.
            path.pop()
    return None


def _best_child(tree: Tree, node: Node, entered: set[int], policy: Policy) -> int | None:
    ways = node.open_ways = node.open_ways or _open_ways(tree, node)
    if not len(ways.children):
        return None
    scores = SELECTIONS[policy.selection](_compare(tree, node, ways, policy), policy)
    for _ in ways.children:
        best = int(scores.argmax())
        if (child := int(ways.children[best])) not in entered:
            return child
        scores[best] = -np.inf
    return None


def _open_ways(tree: Tree, node: Node) -> OpenWays:
    edges = node.edges.view
    edges = edges[tree.node_statistics.ready.view[tree.edge_statistics.child.view[edges]] > 0]
    priors = tree.edge_statistics.prior.view[edges]
    return OpenWays(edges, tree.edge_statistics.child.view[edges], priors / priors.sum())


def _compare(tree: Tree, node: Node, ways: OpenWays, policy: Policy) -> Children:
    statistics = tree.node_statistics
    normalise = NORMALISATIONS[policy.normalisation]
    value = normalise(VALUES[policy.value](statistics, ways.children), tree.low, tree.high)
    visits = np.maximum(tree.edge_statistics.visits.view[ways.edges], 1)
    parent_visits = statistics.visits[node.id]
    in_flight = statistics.in_flight[node.id]
    if not in_flight:
        return Children(value, visits, ways.priors, parent_visits)
    lost = policy.virtual_loss * tree.edge_statistics.in_flight.view[ways.edges]
    loss = normalise(np.array([tree.low]), tree.low, tree.high)
    return Children(
        value=(value * visits + loss * lost) / (visits + lost),
        visits=visits + lost,
        prior=ways.priors,
        parent_visits=parent_visits + policy.virtual_loss * in_flight,
    )
