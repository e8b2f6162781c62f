"""Pruning: which subtrees are passed over until nothing else is left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from mctskernel.core.evaluation import Outcome
from mctskernel.tree.node import Node, Tree
from mctskernel.tree.vector import Array, Vector


class Pruning(Protocol):
    """Says it of one tree."""

    def follow(self, tree: Tree) -> None:
        """Takes in what has happened to the tree since the last call."""
        ...

    def closed(self, tree: Tree, node: Node, children: Array) -> Array:
        """Of some children of an evaluated node, which are passed over."""
        ...


class Unpruned:
    """None."""

    def follow(self, tree: Tree) -> None:
        """Nothing to take in."""

    def closed(self, tree: Tree, node: Node, children: Array) -> Array:  # noqa: ARG002
        """No child."""
        return np.zeros(len(children), bool)


class DeadEnds:
    """Subtrees where evaluations have led to nothing, by the numbers of the tree's policy.

    After `dead_end_failures` evaluations none of which was ok; or after `dead_end_visits` none of which was worth more
    than the node above. Evaluations are those of walks through the child. A dead end may be one from one node and not
    from another that leads to it.
    """

    def __init__(self) -> None:
        self._alive = Vector("bool")
        self._read = 0

    def follow(self, tree: Tree) -> None:
        """Takes in what has happened to the tree since the last call."""
        for _ in range(len(self._alive), len(tree.nodes)):
            self._alive.append(False)
        for node in map(tree.nodes.__getitem__, tree.evaluated[self._read :]):
            if node.outcome is Outcome.OK:
                self._alive.view[tree.traversal(node.id).nodes] = True
        self._read = len(tree.evaluated)

    def closed(self, tree: Tree, node: Node, children: Array) -> Array:
        """Of some children of an evaluated node, which are dead ends."""
        visits = tree.node_statistics.visits.view[children]
        failed = ~self._alive.view[children] & (visits >= tree.policy.dead_end_failures)
        if node.score is None:
            return failed
        gained = tree.node_statistics.reward_max.view[children] > node.score.reward
        dead: Array = failed | (~gained & (visits >= tree.policy.dead_end_visits))
        return dead


PRUNINGS: Mapping[str, Callable[[], Pruning]] = {"none": Unpruned, "dead-ends": DeadEnds}
