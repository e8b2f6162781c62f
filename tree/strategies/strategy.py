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


class Strategy(Protocol):
    """Grows one tree. What it remembers between calls only saves time.

    Another instance that meets the same tree later, for instance after a resume, makes the same steps. A class with
    options names their struct as its attribute `Options`, and is made with one; others are made with nothing. A
    strategy that can say why it chose has a method `explain` as well (`Explains`).
    """

    def step(self, tree: Tree, rng: Generators) -> Step | Propose | None:
        """What comes next; None if nothing can be done before something pending comes back, or ever.

        Only nodes that are `ready` are chosen. The tree isn't changed.
        """
        ...


@dataclass(frozen=True)
class Rival:
    """What could have been chosen: an existing child (`node`), or an edit of a node; its terms, by column."""

    title: str
    node: int | None
    terms: tuple[float, ...]
    chosen: bool


@dataclass(frozen=True)
class Choice:
    """One decision of a strategy, the best rivals first."""

    title: str
    columns: tuple[str, ...]
    rivals: tuple[Rival, ...]


@dataclass(frozen=True)
class Explanation:
    """Decisions in their order, and notes in sentences."""

    choices: tuple[Choice, ...]
    notes: tuple[str, ...]


class Explains(Protocol):
    """A strategy whose choices follow from terms that can be shown."""

    def explain(self, tree: Tree, parent: int, edit: int) -> Explanation:
        """Why an edit of a node is chosen, in the tree as it was then."""
        ...


MOST_RIVALS = 8
"""Of what could have been chosen, the best that are listed beside the one that was."""


def ranked(rivals: Iterable[Rival]) -> tuple[Rival, ...]:
    """The best by their last term, and the chosen one wherever it is."""
    best_first = sorted(rivals, key=lambda rival: -rival.terms[-1])
    return tuple(rival for rank, rival in enumerate(best_first) if rank < MOST_RIVALS or rival.chosen)


def ready_nodes(tree: Tree) -> list[Node]:
    """The nodes of which an edit can be tried, or more can be asked for, in order of creation."""
    return [node for node in tree.nodes if node.ready]


def fastest(nodes: Iterable[Node]) -> Node:
    """The node with the greatest reward of its own, the oldest of equals."""
    return max(nodes, key=lambda node: (node.reward, -node.id))


def expand(node: Node) -> Step | Propose:
    """Try the edit of a node with the greatest prior, or ask for edits if none waits."""
    return Step(node.id, node.untried[0]) if node.untried else Propose(node.id)


def expand_at_random(node: Node, generator: np.random.Generator) -> Step | Propose:
    """Try a random edit of a node, or ask for edits if none waits."""
    if not node.untried:
        return Propose(node.id)
    return Step(node.id, node.untried[int(generator.integers(len(node.untried)))])
