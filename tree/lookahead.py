"""Lookahead: what a policy would do next, several steps of it, and the most promising of them by prediction."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mctskernel.tree.backup import begin_traversal, end_traversal
from mctskernel.tree.expansion import are_tied, predicted_gain
from mctskernel.tree.node import Tree
from mctskernel.tree.selection import Selection, select


@dataclass(frozen=True)
class Step:
    """Edit number `edit` of the last node of `path`."""

    path: tuple[int, ...]
    edit: int

    @property
    def node(self) -> int:
        """The node whose kernel is edited."""
        return self.path[-1]


def selections(tree: Tree, count: int) -> list[Selection]:
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


def most_promising(tree: Tree, steps: Sequence[Step]) -> Step:
    """The first step, in their order, that ties with the greatest estimated speed-up or has no estimate.

    A step that is predicted to be slower than its parent, by more than the uncertainty, stands back while there is
    another one.
    """
    steps = [step for step in steps if not _is_worse(tree, step)] or list(steps)
    estimates = {step: estimate for step in steps if (estimate := estimated_speedup(tree, step))}
    if not estimates:
        return steps[0]
    best = max(estimates, key=lambda step: estimates[step])
    return next(step for step in steps if step not in estimates or _are_tied(tree, step, best, estimates))


def estimated_speedup(tree: Tree, step: Step) -> float:
    """The speed-up over the starting kernel that a step would come to: its parent's, times the predicted gain.

    0 where the parent has none, since it failed. Only the gain is predicted: what the model gets wrong of parent and
    child alike cancels.
    """
    node = tree.nodes[step.node]
    return node.score.speedup * predicted_gain(node, step.edit) if node.score else 0.0


def _is_worse(tree: Tree, step: Step) -> bool:
    prediction = tree.nodes[step.node].predictions.get(step.edit)
    return prediction is not None and prediction.is_worse


def _are_tied(tree: Tree, step: Step, best: Step, estimates: Mapping[Step, float]) -> bool:
    if step.node == best.node:
        return step == best or are_tied(tree.nodes[step.node], step.edit, best.edit)
    # Both start from a time that is known, and what is predicted from there errs independently.
    sigma = math.hypot(_sigma(tree, step), _sigma(tree, best))
    return abs(math.log(estimates[step] / estimates[best])) <= sigma


def _sigma(tree: Tree, step: Step) -> float:
    prediction = tree.nodes[step.node].predictions.get(step.edit)
    return prediction.sigma if prediction is not None else 0.0
