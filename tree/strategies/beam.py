"""Beam search: the best few kernels of each depth go on."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mctskernel.tree.node import Tree
from mctskernel.tree.strategies.open_nodes import expand, open_nodes
from mctskernel.tree.strategies.strategy import Generators, Propose, Step
from mctskernel.tree.vector import Array, Vector

UNRANKED = 2**40
"""The rank of a node whose reward isn't known."""


@dataclass
class BeamSearch:
    """Level by level from the root, each of the best `beam_width` nodes of a level makes `beam_edits` new kernels.

    A level is what has the same depth, so that a generation's children alone go on: with their parents among them the
    best would crowd the beam, as "greedy" does. The next level waits for the last evaluation of the one before. When
    no level has anything left, another pass from the root is twice, then three times as wide and as thorough, and so on
    until everything is tried; a new kernel that ranks high enough for an earlier pass is taken up at once.

    Sources: Reddy, "Speech understanding systems", 1977; Zhang, "Complete anytime beam search", 1998.
    """

    _evaluated: int = 0
    _levels: list[_Level] = field(default_factory=list)
    _depth: Vector = field(default_factory=lambda: Vector("int64"))
    _children: Vector = field(default_factory=lambda: Vector("int64"))
    _birth: Vector = field(default_factory=lambda: Vector("int64"))
    _rank: Vector = field(default_factory=lambda: Vector("int64"))

    def steps(self, tree: Tree, count: int, rng: Generators) -> tuple[Step | Propose, ...]:  # noqa: ARG002
        """The next step, or none."""
        self._catch_up(tree)
        nodes = open_nodes(tree)
        if not len(nodes):
            return ()
        passes = self._passes(tree, nodes, self._children.view[nodes])
        unsettled = self._unsettled(tree)
        now = min([int(passes.min()), *(its_pass for its_pass, _ in unsettled)])
        settled = min((depth for its_pass, depth in unsettled if its_pass <= now), default=len(self._levels))
        members = nodes[(passes == now) & (self._depth.view[nodes] < settled)]
        if not len(members):
            return ()
        first = np.lexsort((self._rank.view[members], self._depth.view[members]))[0]
        return expand(tree, int(members[first]), rng)

    def _catch_up(self, tree: Tree) -> None:
        for node in tree.nodes[len(self._depth) :]:
            self._depth.append(node.depth)
            self._children.append(0)
            self._rank.append(UNRANKED)
            self._birth.append(self._children[node.parent] if node.parent is not None else 0)
            if node.parent is not None:
                self._children[node.parent] += 1
        for node_id in tree.evaluated[self._evaluated :]:
            depth = self._depth[node_id]
            if depth == len(self._levels):
                self._levels.append(_Level())
            level = self._levels[depth]
            changed = level.insert(node_id, tree.node_statistics.reward[node_id])
            self._rank.view[level.nodes[changed:]] = np.arange(changed, len(level.nodes))
        self._evaluated = len(tree.evaluated)

    def _passes(self, tree: Tree, nodes: Array, children: Array) -> Array:
        """The pass in which each of the nodes makes its next new kernel, when it has made so many."""
        policy = tree.policy
        passes: Array = np.maximum(children // policy.beam_edits, self._rank.view[nodes] // policy.beam_width)
        return passes

    def _unsettled(self, tree: Tree) -> list[tuple[int, int]]:
        """Of what is in flight: the pass that it belongs to, and the depth whose ranks wait for it."""
        nodes = np.array([node for node in tree.pending if node], "int64")
        parents = np.array([tree.nodes[node].parent for node in nodes.tolist()], "int64")
        made = self._passes(tree, parents, self._birth.view[nodes]).tolist()
        asked = np.array(list(tree.awaiting), "int64")
        making = self._passes(tree, asked, self._children.view[asked]).tolist()
        return [
            *zip(made, self._depth.view[nodes].tolist(), strict=True),
            *zip(making, (self._depth.view[asked] + 1).tolist(), strict=True),
        ]


@dataclass
class _Level:
    """Nodes of one depth, the greatest reward first, and of equals the one that was evaluated first."""

    nodes: Array = field(default_factory=lambda: np.empty(0, "int64"))
    _losses: Array = field(default_factory=lambda: np.empty(0))

    def insert(self, node: int, reward: float) -> int:
        """Puts a node in its place. Returns its rank, from 0."""
        rank = int(np.searchsorted(self._losses, -reward, side="right"))
        self._losses = np.insert(self._losses, rank, -reward)
        self.nodes = np.insert(self.nodes, rank, node)
        return rank
