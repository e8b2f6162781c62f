"""Lookahead: the most promising of the next few steps, by prediction."""

from __future__ import annotations

from collections.abc import Sequence

from mctskernel.tree.expansion import predicted_gain
from mctskernel.tree.node import Tree
from mctskernel.tree.strategies.strategy import Step


def most_promising(tree: Tree, steps: Sequence[Step]) -> Step:
    """The step with the greatest estimated speed-up, the first of equals, or one before it without an estimate.

    A step that is predicted to be slower than its parent, by more than the uncertainty, stands back while there is
    another one.
    """
    if len(steps) == 1:
        return steps[0]
    steps = [step for step in steps if not _is_worse(tree, step)] or list(steps)
    estimates = {step: estimate for step in steps if (estimate := estimated_speedup(tree, step))}
    if not estimates:
        return steps[0]
    greatest = max(estimates.values())
    return next(step for step in steps if step not in estimates or estimates[step] == greatest)


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
