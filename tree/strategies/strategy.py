"""A strategy decides which edit of which node is tried next, from the tree alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from mctskernel.tree.node import Node, Tree

Generators = Callable[[], np.random.Generator]
"""Makes a random generator, the same one for the same seed and the same number of events."""


@dataclass(frozen=True)
class Step:
    """Edit number `edit` of `node` is to be tried."""

    node: int
    edit: int


@dataclass(frozen=True)
class Propose:
    """A proposer is to be asked for edits of `node`."""

    node: int


Action = Step | Propose


class Strategy(Protocol):
    """Grows one tree. What it remembers between calls only saves time.

    Another instance that meets the same tree later, for instance after a resume, makes the same steps. A class with
    options names their struct as its attribute `Options`, and is made with one; others are made with nothing.
    """

    def step(self, tree: Tree, rng: Generators) -> Action | None:
        """Choose what is next among `ready` nodes; None before something pending comes back, or for ever."""


def ready_nodes(tree: Tree) -> list[Node]:
    """Return the nodes of which an edit can be tried, or more can be asked for, in order of creation."""
    return [node for node in tree.nodes if node.ready]


def fastest(nodes: Iterable[Node]) -> Node:
    """Return the node with the greatest reward of its own, the oldest of equals."""
    return max(nodes, key=lambda node: (node.reward, -node.id))


def expand(node: Node) -> Action:
    """Try the edit of a node with the greatest prior, or ask for edits if none waits."""
    return Step(node.id, node.untried[0]) if node.untried else Propose(node.id)


def expand_at_random(node: Node, generator: np.random.Generator) -> Action:
    """Try a random edit of a node, or ask for edits if none waits."""
    if not node.untried:
        return Propose(node.id)
    return Step(node.id, node.untried[int(generator.integers(len(node.untried)))])
