"""Edit statistics: what edits that decide the same did, wherever in the tree they were tried.

An edit decides its factors; without any, that its title is done. What it decides belongs to a larger kind, from which
it borrows while it is little tried:

    a decision               `block_size_x` at 128     a title
    what it is a matter of   `block_size_x`            a category
    every decision
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np

from mctskernel.core.evaluation import Outcome
from mctskernel.tree.additive_model import AdditiveModel, Belief
from mctskernel.tree.events import EditRecord
from mctskernel.tree.node import Node, Tree
from mctskernel.tree.vector import Array, Vector

EVERY = 0
"""The kind that holds all others, and itself."""

STALE = 100
"""What is expected is worked out again after every evaluation, and once there are this many, after one in a hundred."""

REMEMBERED = 4096
"""Nodes whose decisions are at hand: more than walks come through between two evaluations."""


@dataclass
class Tally:
    """By kind, how many values there were and their sum."""

    count: Vector = field(default_factory=lambda: Vector("int64"))
    total: Vector = field(default_factory=lambda: Vector("float64"))


@dataclass(frozen=True)
class _Decisions:
    """What each edit of a node decides, and the levels that these replace: kinds, one edit's after the other's.

    `starts` is where each edit's begin, `counts` how many they are.
    """

    kinds: Array
    replaced: Array
    starts: Array
    counts: Array


@dataclass
class _Estimates:
    """What is expected of each kind: what the tallies came to when they were last read."""

    gain: Vector = field(default_factory=lambda: Vector("float64"))
    reward: Vector = field(default_factory=lambda: Vector("float64"))
    effect: Vector = field(default_factory=lambda: Vector("float64"))
    belief: Belief = field(default_factory=AdditiveModel(1.0).belief)
    spread: float = 0.0


class EditStatistics:
    """The statistics of one tree's edits, as of the last `follow` or, in a large tree, a little earlier.

    They depend on the evaluations and their order alone: another instance that follows the same tree, all at once, says
    the same to the last bit. `shrinkage`, above 0, is how many tries of a decision count for as much as what is known
    of the larger kind. `version` changes when what they say does.
    """

    def __init__(self, shrinkage: float) -> None:
        self.version = 0
        self._shrinkage = shrinkage
        self._kinds: dict[Hashable, int] = {}
        self._within = Vector("int64")
        self._gains, self._rewards = Tally(), Tally()
        self._squared_gains = 0.0
        self._effects = AdditiveModel(variance=1 / shrinkage)
        self._ok_rewards: list[float] = []
        self._estimates = _Estimates()
        self._drawn: Array = np.zeros(0)
        self._decisions: dict[int, _Decisions] = {}
        self._decided_by: dict[int, tuple[tuple[int, bool], ...]] = {}
        self._edits = Vector("int32")
        self._read = self._due = 0
        self._add_kind(None, within=EVERY)

    def follow(self, tree: Tree) -> None:
        """Takes in what has happened to the tree since the last call."""
        for edge in tree.edges[len(self._edits) :]:
            self._edits.append(edge.edit)
        for node in map(tree.nodes.__getitem__, tree.evaluated[self._read :]):
            self._read += 1
            if node.score is not None:
                self._take_in(tree, node, node.score.reward)
            if self._read > self._due:
                self._due = self._read + self._read // STALE
                self._work_out()

    def edits_of(self, edges: Array) -> Array:
        """The numbers that the edits which made these edges of the tree have in their nodes."""
        return self._edits.view[edges]

    def gain(self, tree: Tree, node: Node) -> Array:
        """By the number of each edit of a node, what it is expected to gain over the node's reward.

        The mean gain where such an edit was tried, shrunk towards that of the larger kind, and this in turn towards
        that of every edit, which is shrunk towards 0. Gains of several decisions add up. What counts is edits that
        decide one thing, of kernels that are ok: who mends a failed kernel gains nothing.
        Source: Efron and Morris, "Data analysis using Stein's estimator and its generalizations", 1975, with the weight
        given instead of estimated.
        """
        decisions = self._of(tree, node)
        return _sums(self._estimates.gain.view[decisions.kinds], decisions)

    def reward(self, tree: Tree, node: Node) -> Array:
        """By the number of each edit of a node, the mean reward of all kernels in which what it decides is in effect.

        Shrunk as gains are; of several decisions, the mean.
        Source: Brügmann, "Monte Carlo Go", 1993: all moves as first.
        """
        decisions = self._of(tree, node)
        means: Array = _sums(self._estimates.reward.view[decisions.kinds], decisions) / decisions.counts
        return means

    def effect(self, tree: Tree, node: Node) -> Array:
        """By the number of each edit of a node, how much what it decides is worth over what it replaces.

        Rewards are taken for a sum of one effect for each decision that is in effect (`AdditiveModel`). A kernel that
        failed counts as one like the median: what it decides promises nothing, and how little a failure is worth says
        nothing of the kernels before it, which are often the best.
        """
        decisions, effects = self._of(tree, node), self._estimates.effect.view
        return _sums(effects[decisions.kinds] - effects[decisions.replaced], decisions)

    def draw(self, rng: np.random.Generator) -> None:
        """Draws the effect of every decision that was observed from what is believed of it.

        Source: Thompson, "On the likelihood that one unknown probability exceeds another in view of the evidence of two
        samples", 1933.
        """
        self._drawn = self._estimates.belief.draw(rng)

    def drawn_effect(self, tree: Tree, node: Node, rng: np.random.Generator) -> Array:
        """As `effect`, with the effects of the last `draw`.

        Decisions that weren't observed yet are drawn here, in the order in which the node's edits decide them.
        """
        decisions, belief = self._of(tree, node), self._estimates.belief
        effects = np.full(len(self._within), np.nan)
        effects[EVERY] = 0.0
        effects[self._effects.effects[: len(self._drawn)]] = self._drawn
        unknown = np.concatenate([decisions.kinds, decisions.replaced])
        unknown = unknown[np.isnan(effects[unknown])]
        if len(unknown):
            kinds, first = np.unique(unknown, return_index=True)
            deviation = belief.noise / math.sqrt(self._shrinkage)
            effects[kinds[np.argsort(first)]] = deviation * rng.standard_normal(len(kinds))
        return _sums(effects[decisions.kinds] - effects[decisions.replaced], decisions)

    @property
    def noise(self) -> float:
        """The standard deviation of rewards around the sums of effects; above 0."""
        return self._estimates.belief.noise

    @property
    def spread(self) -> float:
        """The standard deviation of the gains of all edits; 0 before there are two."""
        return self._estimates.spread

    def _work_out(self) -> None:
        found, count, total = self._estimates, self._gains.count[EVERY], self._gains.total[EVERY]
        found.gain.view[:] = self._shrunk(self._gains, 0.0)
        rewards = self._rewards.count[EVERY]
        found.reward.view[:] = self._shrunk(
            self._rewards, self._rewards.total[EVERY] / rewards if rewards else 0.0
        )
        found.effect.view[self._effects.effects] = self._effects.means
        found.belief = self._effects.belief()
        variance = (self._squared_gains - total * total / count) / count if count > 1 else 0.0
        found.spread = math.sqrt(max(variance, 0.0))
        self.version += 1

    def _shrunk(self, tally: Tally, mean: float) -> Array:
        """By kind, its mean shrunk towards that of the larger kind; that of every edit towards `mean`."""
        total, weight = tally.total.view, tally.count.view + self._shrinkage
        every = (total[EVERY] + self._shrinkage * mean) / weight[EVERY]
        matters = (total + self._shrinkage * every) / weight
        matters[EVERY] = every
        decisions: Array = (total + self._shrinkage * matters[self._within.view]) / weight
        return np.where(self._within.view == EVERY, matters, decisions)

    def _take_in(self, tree: Tree, node: Node, reward: float) -> None:
        levels, titles = self._in_effect(tree, node)
        in_effect = [*levels.values(), *titles]
        for kind in in_effect:
            self._add(self._rewards, kind, reward)
        root = tree.nodes[0].score
        if node.outcome is Outcome.OK:
            bisect.insort(self._ok_rewards, reward)
        if root is not None and self._ok_rewards:
            counted = reward if node.outcome is Outcome.OK else _median(self._ok_rewards)
            self._effects.observe(in_effect, counted - root.reward)
        if node.parent is None or node.edit is None:
            return
        parent = tree.nodes[node.parent]
        decided = self._decided(tree, node)
        if len(decided) == 1 and parent.score is not None and parent.outcome is Outcome.OK:
            gain = reward - parent.score.reward
            self._squared_gains += gain * gain
            self._add(self._gains, decided[0][0], gain)

    def _add(self, tally: Tally, kind: int, value: float) -> None:
        while True:
            tally.count[kind] += 1
            tally.total[kind] += value
            if kind == EVERY:
                return
            kind = self._within[kind]

    def _in_effect(self, tree: Tree, node: Node) -> tuple[dict[int, int], list[int]]:
        """What was decided on the way to a node, the starting kernel's own factors included.

        The last level of every factor, by the factor, and the titles of edits that have none.
        """
        levels: dict[int, int] = {}
        titles: dict[int, None] = {}
        while node.parent is not None:
            for kind, is_level in self._decided(tree, node):
                if is_level:
                    levels.setdefault(self._within[kind], kind)
                else:
                    titles[kind] = None
            node = tree.nodes[node.parent]
        for kind, _ in self._decided(tree, node):
            levels.setdefault(self._within[kind], kind)
        return levels, list(titles)

    def _decided(self, tree: Tree, node: Node) -> tuple[tuple[int, bool], ...]:
        """What the edit decides that made a node, or the starting kernel by itself: kinds, and whether each is a level.

        Remembered, since a journal is read for it.
        """
        known = self._decided_by.get(node.id)
        if known is None:
            if node.parent is None or node.edit is None:
                factors = node.kernel.factors
                kinds = [self._kind(factor, factor.name) for factor in factors]
            else:
                edit = tree.nodes[node.parent].edits[node.edit]
                factors, kinds = edit.factors, self._kinds_of(edit)
            known = self._decided_by[node.id] = tuple((kind, bool(factors)) for kind in kinds)
        return known

    def _of(self, tree: Tree, node: Node) -> _Decisions:
        known = self._decisions.get(node.id)
        if known is None or len(known.starts) < len(node.fates):
            if len(self._decisions) >= REMEMBERED:
                self._decisions.clear()
            kinds = [self._kinds_of(edit) for edit in node.edits]
            counts = np.array([len(each) for each in kinds], np.int64)
            levels, _ = self._in_effect(tree, node)
            flat = np.array([kind for each in kinds for kind in each], np.int64)
            replaced = [levels.get(matter, EVERY) for matter in self._within.view[flat].tolist()]
            known = self._decisions[node.id] = _Decisions(
                flat, np.array(replaced, np.int64), np.cumsum(counts) - counts, counts
            )
        return known

    def _kinds_of(self, edit: EditRecord) -> list[int]:
        if edit.factors:
            return [self._kind(factor, factor.name) for factor in edit.factors]
        return [self._kind((edit.category, edit.title), (edit.category,))]

    def _kind(self, decision: Hashable, matter: Hashable) -> int:
        if decision not in self._kinds:
            if matter not in self._kinds:
                self._add_kind(matter, within=EVERY)
            self._add_kind(decision, within=self._kinds[matter])
        return self._kinds[decision]

    def _add_kind(self, key: Hashable, within: int) -> None:
        self._kinds[key] = len(self._within)
        self._within.append(within)
        for tally in (self._gains, self._rewards):
            tally.count.append(0)
            tally.total.append(0)
        for estimate in (self._estimates.gain, self._estimates.reward):
            # As `_shrunk` has it for a kind that was never tried, to the last bit.
            estimate.append(self._shrinkage * estimate[within] / self._shrinkage if len(estimate) else 0.0)
        self._estimates.effect.append(0.0)


def _median(ascending: list[float]) -> float:
    """The lower one of two."""
    return ascending[(len(ascending) - 1) // 2]


def _sums(values: Array, decisions: _Decisions) -> Array:
    """Of each edit's, the sum."""
    if len(values) == len(decisions.starts):
        return values
    sums: Array = np.add.reduceat(values, decisions.starts)
    return sums
