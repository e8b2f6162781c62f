"""A priority queue over an epsilon-net: of kernels that are much alike, one is refined."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from mctskernel.tree.node import Tree
from mctskernel.tree.strategies.open_nodes import best, expand, open_nodes
from mctskernel.tree.strategies.strategy import Generators, Propose, Step
from mctskernel.tree.vector import Vector


@dataclass
class EpsilonNet:
    """Edits of the best node of a net; the share `net_exploration` of attempts goes to a random node that is ready.

    A kernel joins the net when its reward comes, unless that of an earlier member is within `net_radius`: what is as
    fast to the noise is most likely the same in other words. When no member is ready, the best node of all is taken.

    Source: Ren, Nie, Xie and Cheng, "POLCA: Stochastic generative optimization with LLM", 2026, where the distance is
    that of embeddings of the source; rewards being logarithms of time, 0.01 is 1 % of it.
    """

    _evaluated: int = 0
    _members: Vector = field(default_factory=lambda: Vector("int64"))
    _rewards: list[float] = field(default_factory=list)

    def steps(self, tree: Tree, count: int, rng: Generators) -> tuple[Step | Propose, ...]:  # noqa: ARG002
        """The next step, or none."""
        self._catch_up(tree)
        nodes = open_nodes(tree)
        if not len(nodes):
            return ()
        generator = rng()
        if generator.random() < tree.policy.net_exploration:
            return expand(tree, int(generator.choice(nodes)), rng)
        members = self._members.view
        members = members[tree.node_statistics.open.view[members]]
        return expand(tree, best(tree, members if len(members) else nodes), rng)

    def _catch_up(self, tree: Tree) -> None:
        for node in tree.evaluated[self._evaluated :]:
            reward = tree.node_statistics.reward[node]
            place = bisect_left(self._rewards, reward)
            near = self._rewards[max(place - 1, 0) : place + 1]
            if all(abs(reward - other) > tree.policy.net_radius for other in near):
                insort(self._rewards, reward)
                self._members.append(node)
        self._evaluated = len(tree.evaluated)
