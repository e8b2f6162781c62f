"""Random search: what a search finds that learns nothing."""

from __future__ import annotations

from dataclasses import dataclass

from mctskernel.tree.node import Tree
from mctskernel.tree.strategies.open_nodes import expand_at_random, open_nodes
from mctskernel.tree.strategies.strategy import Generators, Propose, Step


@dataclass(frozen=True)
class RandomSearch:
    """A node drawn from all that are ready, each as likely, and then one of its edits, each as likely.

    A node without an edit to try is asked for some when it is drawn. So the draw isn't uniform over edits: those of
    nodes that were never asked are unknown. Source: Bergstra and Bengio, "Random search for hyper-parameter
    optimization", 2012, on a tree that grows.
    """

    def steps(self, tree: Tree, count: int, rng: Generators) -> tuple[Step | Propose, ...]:  # noqa: ARG002
        """The next step, or none."""
        nodes = open_nodes(tree)
        if not len(nodes):
            return ()
        generator = rng()
        return expand_at_random(tree, int(nodes[generator.integers(len(nodes))]), generator)
