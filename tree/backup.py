"""Backup: what a reward does to the statistics along the path that was walked, and what a node is worth.

Both the sum and the maximum of rewards are kept, so a finished journal can be read under either value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mctskernel.tree.lineage import Path
from mctskernel.tree.node import NodeStatistics, Tree
from mctskernel.tree.vector import Array, Vector


def mean(statistics: NodeStatistics, nodes: Array) -> Array:
    """The mean reward of the traversals of each node (each must have one)."""
    return statistics.reward_sum.view[nodes] / statistics.visits.view[nodes]


def maximum(statistics: NodeStatistics, nodes: Array) -> Array:
    """The greatest reward of the traversals of each node."""
    return statistics.reward_max.view[nodes]


Value = Callable[[NodeStatistics, Any], Any]
"""Takes one node or an array of them."""

VALUES: Mapping[str, Value] = {"mean": mean, "max": maximum}


SHORT = 12
"""Nodes of a path up to which its numbers are changed one by one: for more of them, arrays are quicker."""


def begin_traversal(tree: Tree, path: Path) -> None:
    """Counts a traversal in flight on every node and edge of a path."""
    _add_in_flight(tree, path, 1)


def end_traversal(tree: Tree, path: Path) -> None:
    """Takes a traversal in flight back."""
    _add_in_flight(tree, path, -1)


def back_up(tree: Tree, path: Path, reward: float) -> None:
    """Makes of a traversal in flight one with its reward, on every node and edge of a path."""
    end_traversal(tree, path)
    if len(path.nodes) <= SHORT:
        _back_up_one_by_one(tree, path, reward)
        return
    statistics, nodes = tree.node_statistics, path.nodes
    statistics.visits.view[nodes] += 1
    statistics.reward_sum.view[nodes] += reward
    best = statistics.reward_max.view
    best[nodes] = np.maximum(best[nodes], reward)
    tree.edge_statistics.visits.view[path.edges] += 1


def _back_up_one_by_one(tree: Tree, path: Path, reward: float) -> None:
    statistics = tree.node_statistics
    visits, sums, best = statistics.visits.cells, statistics.reward_sum.cells, statistics.reward_max.cells
    for node in path.nodes.tolist():
        visits[node] += 1
        sums[node] += reward
        best[node] = max(reward, best[node])
    edge_visits = tree.edge_statistics.visits.cells
    for edge in path.edges.tolist():
        edge_visits[edge] += 1


def add(counts: Vector, places: Array, change: int) -> None:
    """Adds a number to the counts at some places, each of them once."""
    if len(places) <= SHORT:
        cells = counts.cells
        for place in places.tolist():
            cells[place] += change
        return
    counts.view[places] += change


def _add_in_flight(tree: Tree, path: Path, change: int) -> None:
    add(tree.node_statistics.in_flight, path.nodes, change)
    add(tree.edge_statistics.in_flight, path.edges, change)
