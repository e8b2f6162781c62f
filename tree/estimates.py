"""Estimates: what the kernels that a node's edits make are worth, judged by what such edits did elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mctskernel.tree.edit_statistics import EditStatistics
from mctskernel.tree.node import Node, Tree
from mctskernel.tree.vector import Array


def by_gain(statistics: EditStatistics, tree: Tree, node: Node) -> Array:
    """The node's own reward, and on top of it what such edits gained."""
    reward: float = tree.node_statistics.reward[node.id]
    return reward + statistics.gain(tree, node)


def by_amaf(statistics: EditStatistics, tree: Tree, node: Node) -> Array:
    """The mean reward of the kernels in which such an edit is in effect, whatever the node's own (AMAF).

    Source: Gelly and Silver, "Monte-Carlo tree search and rapid action value estimation in computer Go", 2011, section
    4.1, over the whole tree instead of below the node.
    """
    return statistics.reward(tree, node)


def by_effect(statistics: EditStatistics, tree: Tree, node: Node) -> Array:
    """The node's own reward, and on top of it what the edit's decisions are worth over those that they replace."""
    reward: float = tree.node_statistics.reward[node.id]
    return reward + statistics.effect(tree, node)


Estimate = Callable[[EditStatistics, Tree, Node], Array]
"""Takes an evaluated node; gives a reward for each of its edits, by number."""

ESTIMATES: Mapping[str, Estimate] = {"gain": by_gain, "amaf": by_amaf, "effect": by_effect}
