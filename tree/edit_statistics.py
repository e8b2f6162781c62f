"""Edit statistics: what edits that decide the same did, wherever in the tree they were tried.

An edit decides its factors; without any, that its title is done. Kinds are what is told apart, each within a larger
one, from which it borrows while it is little tried:

    what an edit decides         `block_size_x` at 128     the title
    what that is a matter of     `block_size_x`            the category
    every edit
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

import numpy as np

from mctskernel.core.edit import Factor
from mctskernel.core.evaluation import Outcome
from mctskernel.tree.events import EditRecord
from mctskernel.tree.node import Node, Tree
from mctskernel.tree.vector import Array, Vector

EVERY_EDIT = 0
"""The kind that holds all others, and itself."""


@dataclass
class Tally:
    """By kind, how many values there were and their sum."""

    count: Vector = field(default_factory=lambda: Vector("int64"))
    total: Vector = field(default_factory=lambda: Vector("float64"))


class EditStatistics:
    """The statistics of one tree's edits, as of the last `follow`.

    They are sums over evaluations, in the order in which these came: another instance that follows the same tree, all
    at once, says the same to the last bit. An edit that made a known kernel counts for nothing, and so does one of a
    failed kernel: to mend it is no gain.
    """

    def __init__(self) -> None:
        self._kinds: dict[Hashable, int] = {}
        self._within = Vector("int64")
        self._gains, self._rewards = Tally(), Tally()
        self._squared_gains = 0.0
        self._edges = Vector("int64")
        self._of_node: dict[int, Array] = {}
        self._read = 0
        self._add_kind(None, within=EVERY_EDIT)

    def follow(self, tree: Tree) -> None:
        """Takes in what has happened to the tree since the last call."""
        for edge in tree.edges[len(self._edges) :]:
            self._edges.append(self._kind_of(tree.nodes[edge.parent].edits[edge.edit]))
        for node in map(tree.nodes.__getitem__, tree.evaluated[self._read :]):
            if node.score is not None:
                self._take_in(tree, node, node.score.reward)
        self._read = len(tree.evaluated)

    def of_edits(self, node: Node) -> Array:
        """The kinds of a node's edits, by their number."""
        known = self._of_node.get(node.id)
        if known is None or len(known) < len(node.edits):
            known = self._of_node[node.id] = np.array([self._kind_of(edit) for edit in node.edits], np.int32)
        return known

    def of_edges(self, edges: Array) -> Array:
        """The kinds of the edits that made these edges of the tree."""
        return self._edges.view[edges]

    def tries(self, kinds: Array) -> Array:
        """How many evaluated kernels were made by an edit of each kind."""
        return self._gains.count.view[kinds]

    def gain(self, kinds: Array, shrinkage: float) -> Array:
        """The expected gain of an edit of each kind: its kernel's reward less that of the kernel it edited.

        The mean of its kind, shrunk towards that of the larger kind, and this in turn towards that of every edit, which
        is shrunk towards 0: `shrinkage`, above 0, is how many tries the larger kind counts for.
        Source: Efron and Morris, "Data analysis using Stein's estimator and its generalizations", 1975, with the weight
        given instead of estimated.
        """
        return self._shrunk(self._gains, kinds, shrinkage, 0.0)

    def reward(self, kinds: Array, shrinkage: float) -> Array:
        """The mean reward of all kernels where what the kind decides is in effect, shrunk as `gain` is.

        Source: Brügmann, "Monte Carlo Go", 1993: all moves as first.
        """
        count, total = self._rewards.count[EVERY_EDIT], self._rewards.total[EVERY_EDIT]
        return self._shrunk(self._rewards, kinds, shrinkage, total / count if count else 0.0)

    @property
    def spread(self) -> float:
        """The standard deviation of the gains of all edits; 0 before there are two."""
        count, total = self._gains.count[EVERY_EDIT], self._gains.total[EVERY_EDIT]
        return math.sqrt(max(self._squared_gains - total * total / count, 0.0) / count) if count > 1 else 0.0

    def _shrunk(self, tally: Tally, kinds: Array, shrinkage: float, mean: float) -> Array:
        means = np.full(len(kinds), mean)
        for level in (np.full(len(kinds), EVERY_EDIT), self._within.view[kinds], kinds):
            means = (tally.total.view[level] + shrinkage * means) / (tally.count.view[level] + shrinkage)
        return means

    def _take_in(self, tree: Tree, node: Node, reward: float) -> None:
        for kind in self._in_effect(tree, node):
            self._add(self._rewards, kind, reward)
        if node.parent is None or node.edit is None:
            return
        parent = tree.nodes[node.parent]
        if parent.score is None or parent.outcome is not Outcome.OK:
            return
        gain = reward - parent.score.reward
        self._squared_gains += gain * gain
        self._add(self._gains, self._kind_of(parent.edits[node.edit]), gain)

    def _add(self, tally: Tally, kind: int, value: float) -> None:
        while True:
            tally.count[kind] += 1
            tally.total[kind] += value
            if kind == EVERY_EDIT:
                return
            kind = self._within[kind]

    def _kind_of(self, edit: EditRecord) -> int:
        return self._of_factors(edit.factors) if edit.factors else self._of_title(edit)

    def _of_factors(self, factors: tuple[Factor, ...]) -> int:
        return self._kind(frozenset(factors), frozenset(factor.name for factor in factors))

    def _of_title(self, edit: EditRecord) -> int:
        return self._kind((edit.category, edit.title), edit.category)

    def _kind(self, decision: Hashable, matter: Hashable) -> int:
        if decision not in self._kinds:
            if matter not in self._kinds:
                self._add_kind(matter, within=EVERY_EDIT)
            self._add_kind(decision, within=self._kinds[matter])
        return self._kinds[decision]

    def _add_kind(self, key: Hashable, within: int) -> None:
        self._kinds[key] = len(self._within)
        self._within.append(within)
        for tally in (self._gains, self._rewards):
            tally.count.append(0)
            tally.total.append(0)

    def _in_effect(self, tree: Tree, node: Node) -> Iterator[int]:
        """The kinds of what was decided last of every matter on the way to a node, its starting kernel included."""
        settled: set[str] = set()
        while node.parent is not None and node.edit is not None:
            parent = tree.nodes[node.parent]
            edit = parent.edits[node.edit]
            if not edit.factors:
                yield self._of_title(edit)
            unsettled = [factor for factor in edit.factors if factor.name not in settled]
            if len(unsettled) == len(edit.factors) > 1:
                yield self._of_factors(edit.factors)
            yield from (self._of_factors((factor,)) for factor in unsettled)
            settled.update(factor.name for factor in unsettled)
            node = parent
        yield from (
            self._of_factors((factor,)) for factor in node.kernel.factors if factor.name not in settled
        )
