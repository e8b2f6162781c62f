"""Open nodes: those of the whole tree that can be expanded now, and the step that expands one."""

from __future__ import annotations

import numpy as np

from mctskernel.tree.expansion import ORDERS, Untried, by_dissent, is_dissenting
from mctskernel.tree.node import Tree
from mctskernel.tree.strategies.strategy import Generators, Propose, Step
from mctskernel.tree.vector import Array


def open_nodes(tree: Tree) -> Array:
    """The nodes that are ready, in order of creation."""
    return np.flatnonzero(tree.node_statistics.open.view)


def best(tree: Tree, nodes: Array) -> int:
    """The one with the greatest reward of its own, the first of equals; there must be one."""
    return int(nodes[tree.node_statistics.reward.view[nodes].argmax()])


def expand(tree: Tree, node: int, rng: Generators) -> tuple[Step | Propose, ...]:
    """Tries a node's next edit by the order of the tree's policy, or asks for edits where none waits."""
    found = tree.nodes[node]
    path = tuple(tree.lineage(node))
    if not found.untried:
        return (Propose(path),)
    order = by_dissent if is_dissenting(tree) else ORDERS[tree.policy.order]
    return (Step(path, order(found, Untried.of(found), rng)),)


def expand_at_random(tree: Tree, node: int, generator: np.random.Generator) -> tuple[Step | Propose, ...]:
    """Tries an edit of a node, each that waits as likely, or asks for edits where none waits."""
    untried = tree.nodes[node].untried
    path = tuple(tree.lineage(node))
    if not untried:
        return (Propose(path),)
    return (Step(path, untried[int(generator.integers(len(untried)))]),)
