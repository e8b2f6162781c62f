"""Monte Carlo tree search: every step is a walk from the root by the statistics of the nodes."""

from __future__ import annotations

from dataclasses import dataclass

from mctskernel.tree.backup import begin_traversal, end_traversal
from mctskernel.tree.expansion import ORDERS, Order, by_dissent, is_dissenting
from mctskernel.tree.node import Tree
from mctskernel.tree.selection import Selection, select
from mctskernel.tree.strategies.strategy import Generators, Propose, Step


@dataclass(frozen=True)
class TreeWalk:
    """Selection, widening and order as the tree's policy has them."""

    def steps(self, tree: Tree, count: int, rng: Generators) -> tuple[Step | Propose, ...]:
        """Walks, each with the ones before it in flight."""
        order: Order = by_dissent if is_dissenting(tree) else ORDERS[tree.policy.order]
        steps: list[Step] = []
        for selection in _selections(tree, count):
            node = tree.nodes[selection.node]
            if not node.untried:
                return (*steps, Propose(selection.path))
            taken = {step.edit for step in steps if step.node == node.id}
            left = [edit for edit in node.untried if edit not in taken]
            if not left:
                break
            steps.append(Step(selection.path, order(node, left, rng)))
        return tuple(steps)


def _selections(tree: Tree, count: int) -> list[Selection]:
    """The next selections, at the most `count`, each made as if the ones before were in flight.

    The tree is as it was when this returns.
    """
    made: list[Selection] = []
    try:
        while len(made) < count and (found := select(tree, tree.policy)):
            made.append(found)
            begin_traversal(tree, found.path)
            tree.nodes[found.node].children += 1
    finally:
        for each in made:
            end_traversal(tree, each.path)
            tree.nodes[each.node].children -= 1
    return made
