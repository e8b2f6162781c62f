"""Repairs: whether a kernel that failed is mended at once, or when what is tried next comes to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mctskernel.core.evaluation import REPAIRABLE, Outcome
from mctskernel.tree.node import Node, Tree
from mctskernel.tree.strategies.strategy import Propose, Step

WINDOW = 32
"""Evaluations, the latest, among which a failure is looked for."""

Repair = Callable[[Tree], Step | Propose | None]
"""What mends a failure comes before all else; None where nothing is to be mended."""


def in_turn(tree: Tree) -> Step | Propose | None:  # noqa: ARG001 - a Repair
    """Nothing: a failure is worth less than all else, and few strategies ever come back to it."""
    return None


def at_once(tree: Tree) -> Step | Propose | None:
    """What mends the latest failure that has been given no edits, or has some and none that worked or is in flight.

    A failure is given edits once. `repair_depth` bounds how many failures may follow each other.
    """
    for number in tree.evaluated[: -WINDOW - 1 : -1]:
        node = tree.nodes[number]
        if node.outcome not in REPAIRABLE or not node.ready or _has_hope(tree, node):
            continue
        path = tuple(tree.lineage(number))
        if node.untried:
            return Step(path, node.untried[0])
        if not node.fates and not node.fruitless_replies:
            return Propose(path)
    return None


def _has_hope(tree: Tree, node: Node) -> bool:
    """Whether an edit of a node made a kernel that works, or that isn't judged yet."""
    made = (tree.nodes[fate.node] for fate in node.fates if fate.node is not None)
    return any(child.evidence is None or child.outcome is Outcome.OK for child in made)


REPAIRS: Mapping[str, Repair] = {"in-turn": in_turn, "at-once": at_once}
