"""A strategy decides which edit of which node is tried next, from the tree alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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

    Another instance that meets the same tree later, for instance after a resume, makes the same steps.
    """

    def step(self, tree: Tree, rng: Generators) -> Step | Propose | None:
        """What comes next; None if nothing can be done before something pending comes back, or ever.

        Only nodes that are `ready` are chosen. The tree isn't changed.
        """
        ...


def ready_nodes(tree: Tree) -> list[Node]:
    """The nodes of which an edit can be tried, or more can be asked for, in order of creation."""
    return [node for node in tree.nodes if node.ready]


def fastest(nodes: Iterable[Node]) -> Node:
    """The node with the greatest reward of its own, the oldest of equals."""
    return max(nodes, key=lambda node: (node.reward, -node.id))


def expand(tree: Tree, node: Node) -> Step | Propose:
    """Try a node's next edit by the order of the tree's policy, or ask for edits if none waits."""
    if not node.untried:
        return Propose(node.id)
    return Step(node.id, next_edit(tree, node, node.untried))


def expand_at_random(node: Node, generator: np.random.Generator) -> Step | Propose:
    """Try a random edit of a node, or ask for edits if none waits."""
    if not node.untried:
        return Propose(node.id)
    return Step(node.id, node.untried[int(generator.integers(len(node.untried)))])


def next_edit(tree: Tree, node: Node, ranked: Sequence[int]) -> int:
    """Of a node's untried edits, the most promising first, the one to try next.

    With predictions, the first of those with the greatest predicted gain; however uncertain, a prediction is the best
    guess that there is (docs/surrogate.md). An edit without one counts as no gain, and as equal to what is predicted
    to be within the uncertainty of that. The exploration fraction of nodes goes to the other edits.
    """
    if tree.policy.order != "predicted":
        return ranked[0]
    best = max(ranked, key=lambda edit: _predicted_gain(node, edit))
    favoured = [edit for edit in ranked if edit == best or _are_equal(node, best, edit)]
    if _is_exploring(tree):
        return next((edit for edit in ranked if edit not in favoured), ranked[0])
    return favoured[0]


def _is_exploring(tree: Tree) -> bool:
    count, fraction = len(tree.nodes), tree.policy.exploration_fraction
    return int((count + 1) * fraction) > int(count * fraction)


def _predicted_gain(node: Node, edit: int) -> float:
    found = node.predictions.get(edit)
    return found.gain if found is not None and found.gain > 0 else 1.0


def _are_equal(node: Node, first: int, second: int) -> bool:
    known = [found for edit in (first, second) if (found := node.predictions.get(edit)) and found.gain > 0]
    if len(known) == 2:
        return known[0].gain == known[1].gain
    return all(found.is_tie for found in known)
