"""Search guided by a model of the edits: what edits did anywhere in the tree says what to expect of those to come.

Every untried edit of the tree has an expected improvement; a node is worth the greatest of those below it, and the walk
from the root goes to where that is. So it ends at the edit with the greatest one of all, which is taken at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from mctskernel.tree.edit_model.frontier import Candidate, Frontier
from mctskernel.tree.edit_model.model import EditModel
from mctskernel.tree.edit_model.one_thread import on_one_thread
from mctskernel.tree.node import Tree
from mctskernel.tree.strategies.strategy import Generators, Propose, Step
from mctskernel.tree.vector import Array

LARGEST_FRONTIER = 16384
"""What may be tried, at the most, when the model is made; in a larger tree, what the fastest nodes offer."""

TRUST = 10
"""Evaluations after which the prior of an edit counts half, as an exponent."""

TIE = 1e-6
"""Worths that are this near, as a fraction, are equal: the older one is taken."""


@dataclass(frozen=True)
class Rating:
    """What was known of something that could be tried: an edit of a node, or a further reply of its proposer (None).

    `worth` is the expected `improvement` times the power of the prior.
    """

    node: int
    edit: int | None
    improvement: float
    prior: float
    worth: float


class ModelGuided:
    """Takes the edit with the greatest expected improvement, times a power of its prior that falls as more is known.

    The power is from Hvarfner et al., "piBO: augmenting acquisition functions with user beliefs", 2022.
    """

    def __init__(self) -> None:
        self._frontier = Frontier()
        self._model: EditModel | None = None
        self._scanned = 0

    def steps(self, tree: Tree, count: int, rng: Generators) -> tuple[Step | Propose, ...]:  # noqa: ARG002 - nothing is drawn
        """The most promising edits; those after the first as if it were not in flight."""
        if not tree.evaluated:
            return ()
        with on_one_thread():
            return self._steps(tree, count)

    def ratings(self, tree: Tree, most: int) -> tuple[Rating, ...]:
        """What `steps` goes by: the most promising edits, the best first."""
        if not tree.evaluated:
            return ()
        with on_one_thread():
            return self._ratings(tree, most)

    def _steps(self, tree: Tree, count: int) -> tuple[Step | Propose, ...]:
        model = self._follow(tree)
        found: list[Step | Propose] = []
        for column in self._by_worth(tree, model):
            if (candidate := self._frontier.take(tree, column)) is not None:
                found.append(_step(tree, candidate))
                if len(found) == count or isinstance(found[-1], Propose):
                    break
        return tuple(found) or self._leftover(tree)

    def _ratings(self, tree: Tree, most: int) -> tuple[Rating, ...]:
        model, frontier = self._follow(tree), self._frontier
        improvements, priors = model.expected_improvements(tree), self._weighted_priors(tree)
        found = ((column, frontier.take(tree, column)) for column in self._by_worth(tree, model))
        return tuple(
            Rating(
                each.node,
                each.edit,
                float(improvements[column]),
                float(priors[column]),
                float(improvements[column] * priors[column]),
            )
            for column, each in islice(((column, each) for column, each in found if each), most)
        )

    def _follow(self, tree: Tree) -> EditModel:
        frontier = self._frontier
        self._scanned = min([self._scanned, *frontier.follow(tree)])
        model = self._model
        if model is not None and model.is_current(tree):
            model.follow(frontier.rows, frontier.columns)
        else:
            frontier.shrink(tree, LARGEST_FRONTIER)
            model = self._model = EditModel(tree, frontier.vocabulary, frontier.rows, frontier.columns)
        return model

    def _by_worth(self, tree: Tree, model: EditModel) -> Iterator[int]:
        """The open columns of the frontier, the most promising first."""
        frontier = self._frontier
        worth = model.expected_improvements(tree) * self._weighted_priors(tree)
        worth = np.where(frontier.is_open.view, worth, -np.inf)
        while len(worth) and (greatest := worth.max()) > -np.inf:
            equal = np.flatnonzero(worth >= greatest - TIE * abs(greatest))
            column = min(equal.tolist(), key=frontier.age)
            yield column
            worth[column] = -np.inf

    def _weighted_priors(self, tree: Tree) -> Array:
        weighted: Array = self._frontier.prior.view ** (TRUST / (TRUST + len(tree.evaluated)))
        return weighted

    def _leftover(self, tree: Tree) -> tuple[Step | Propose, ...]:
        """What the model sees no reason to try, since all that it would decide was decided before: the oldest first."""
        while self._scanned < len(tree.nodes):
            node = tree.nodes[self._scanned]
            if node.ready:
                candidate = Candidate(node.id, min(node.untried, default=None))
                self._frontier.watch(candidate)
                return (_step(tree, candidate),)
            self._scanned += 1
        return ()


def _step(tree: Tree, candidate: Candidate) -> Step | Propose:
    path = tuple(tree.lineage(candidate.node))
    return Propose(path) if candidate.edit is None else Step(path, candidate.edit)
