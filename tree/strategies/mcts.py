"""Monte Carlo tree search: every step is a walk from the root by the statistics of the nodes."""

from __future__ import annotations

from collections.abc import Set

from mctskernel.tree.backup import begin_traversal, end_traversal
from mctskernel.tree.expansion import ORDERS, Order, Untried, by_dissent, is_dissenting
from mctskernel.tree.guidance import Guidance
from mctskernel.tree.leads import Leads
from mctskernel.tree.node import Node, Tree
from mctskernel.tree.selection import Selection, select
from mctskernel.tree.strategies.strategy import Generators, Propose, Step


class TreeWalk:
    """Selection, widening, order and guidance as the tree's policy has them."""

    def __init__(self) -> None:
        self._guidance: Guidance | None = None
        self._leads: Leads | None = None

    def steps(self, tree: Tree, count: int, rng: Generators) -> tuple[Step | Propose, ...]:
        """Walks, each with the ones before it in flight."""
        guidance = self._guidance = self._guidance or Guidance(tree.policy)
        guidance.follow(tree)
        leads = self._leads = self._leads or Leads(tree.policy)
        order: Order = by_dissent if is_dissenting(tree) else ORDERS[tree.policy.order]
        steps: list[Step] = []
        for selection in _selections(tree, count, guidance, leads):
            node = tree.nodes[selection.node]
            if not node.untried:
                return (*steps, Propose(selection.path))
            taken = {step.edit for step in steps if step.node == node.id}
            if taken.issuperset(node.untried):
                break
            untried = _ranked(tree, node, taken, guidance)
            steps.append(Step(selection.path, order(node, untried, rng)))
        return tuple(steps)


def _ranked(tree: Tree, node: Node, taken: Set[int], guidance: Guidance) -> Untried:
    """A node's untried edits but those that are taken, with the weights that they have by now."""
    if guidance.is_silent and not taken:
        return Untried.of(node)
    left = [edit for edit in sorted(node.untried) if edit not in taken]
    return Untried.ranked(left, guidance.weights(tree, node, left))


def _selections(tree: Tree, count: int, guidance: Guidance, leads: Leads) -> list[Selection]:
    """The next selections, at the most `count`, each made as if the ones before were in flight.

    The tree is as it was when this returns.
    """
    made: list[Selection] = []
    flying: list[Selection] = []
    try:
        while found := select(tree, tree.policy, guidance, leads):
            made.append(found)
            if len(made) == count:
                break
            flying.append(found)
            begin_traversal(tree, tree.path(found.path))
            tree.nodes[found.node].children += 1
    finally:
        for each in flying:
            end_traversal(tree, tree.path(each.path))
            tree.nodes[each.node].children -= 1
    return made
