"""What an evaluation costs, in the part of a budget that is scarcest."""

from __future__ import annotations

from mctskernel.run import Budget
from mctskernel.tree.node import Tree

FREE = 1e-9
"""The share of what is left that an evaluation takes of which nothing is limited."""


def evaluation_cost(tree: Tree, left: Budget) -> float:
    """The share of what is left that a search's next evaluation is expected to take, of the limit where it is largest.

    It is expected to cost what the search's evaluations did on average. Nothing of `left` is 0.
    """
    count = max(1, tree.evaluations)
    pairs = (
        (1.0, left.evaluations),
        (tree.evaluation_seconds / count, left.seconds),
        (tree.dollars / count, left.dollars),
    )
    return max(FREE, *(cost / limit for cost, limit in pairs if limit is not None))
