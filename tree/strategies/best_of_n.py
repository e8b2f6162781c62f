"""Best of n: independent attempts at the starting kernel, and the best of them."""

from __future__ import annotations

from dataclasses import dataclass

from mctskernel.tree.node import Tree
from mctskernel.tree.strategies.open_nodes import expand
from mctskernel.tree.strategies.strategy import Generators, Propose, Step

ROOT = 0


@dataclass(frozen=True)
class BestOfN:
    """Edits of the root alone, which is asked for more as long as it has any.

    n is the budget. Source: repeated sampling in Ouyang et al., "KernelBench: Can LLMs write efficient GPU kernels?",
    2025.
    """

    def steps(self, tree: Tree, count: int, rng: Generators) -> tuple[Step | Propose, ...]:  # noqa: ARG002
        """The next step, or none."""
        return expand(tree, ROOT, rng) if tree.nodes and tree.nodes[ROOT].ready else ()
