"""Greedy refinement: always the best kernel so far."""

from __future__ import annotations

from dataclasses import dataclass

from mctskernel.tree.node import Tree
from mctskernel.tree.strategies.open_nodes import best, expand, open_nodes
from mctskernel.tree.strategies.strategy import Generators, Propose, Step


@dataclass(frozen=True)
class Greedy:
    """Edits of the node with the greatest reward among those that are ready, the oldest of equals.

    So it leaves a kernel for the first better one, and comes to the next best when the best has no more edits (or
    awaits them). Source: best-first search, as in Hart, Nilsson and Raphael, "A formal basis for the heuristic
    determination of minimum cost paths", 1968; iterative refinement in Ouyang et al., "KernelBench", 2025.
    """

    def steps(self, tree: Tree, count: int, rng: Generators) -> tuple[Step | Propose, ...]:  # noqa: ARG002
        """The next step, or none."""
        nodes = open_nodes(tree)
        return expand(tree, best(tree, nodes), rng) if len(nodes) else ()
