"""Search guided by a model of the edits: what edits did anywhere in the tree predicts those that are left.

Every untried edit of the tree has an expected improvement; the value of a node is the greatest below it, so that the
walk from the root ends at the greatest of all, which is tried at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from mctskernel.tree.edit_model.frontier import Candidate, Frontier
from mctskernel.tree.edit_model.model import EditModel
from mctskernel.tree.node import Tree
from mctskernel.tree.strategies.strategy import Generators, Propose, Step

LARGEST_FRONTIER = 16384
"""What may be tried, at most, when the model is made; in a larger tree, the edits of the fastest nodes."""

TRUST = 10
"""Evaluations after which the prior of an edit counts half, as an exponent."""

TIE = 1e-6
"""Candidates whose ratings are this near, as a fraction, are equal: the older one is taken."""


@dataclass(frozen=True)
class Rating:
    """An edit of a node, or a further reply of its proposer (None): expected `improvement` times `prior`."""

    node: int
    edit: int | None
    improvement: float
    prior: float

    @property
    def value(self) -> float:
        """What candidates are ranked by."""
        return self.improvement * self.prior


class ModelGuided:
    """Takes the edit with the greatest expected improvement, times a power of its prior that falls as more is known.

    The power is from Hvarfner et al., "piBO: augmenting acquisition functions with user beliefs", 2022.
    """

    def __init__(self) -> None:
        self._frontier = Frontier()
        self._model: EditModel | None = None
        self._scanned = 0

    def step(self, tree: Tree, rng: Generators) -> Step | Propose | None:  # noqa: ARG002 - a Strategy
        """The most promising edit."""
        if not tree.evaluated:
            return None
        with _one_thread():
            found = next(self._ratings(tree), None)
        if found is not None:
            return _step(Candidate(found.node, found.edit))
        return self._leftover(tree)

    def ratings(self, tree: Tree, most: int) -> tuple[Rating, ...]:
        """The most promising edits, the best first."""
        with _one_thread():
            return tuple(islice(self._ratings(tree), most)) if tree.evaluated else ()

    def _ratings(self, tree: Tree) -> Iterator[Rating]:
        model, frontier = self._update(tree), self._frontier
        improvements = model.expected_improvements(tree)
        priors = np.array(frontier.prior) ** (TRUST / (TRUST + len(tree.evaluated)))
        values = np.where(np.array(frontier.is_open, dtype=bool), improvements * priors, -np.inf)
        while len(values) and (greatest := values.max()) > -np.inf:
            equal = np.flatnonzero(values >= greatest - TIE * abs(greatest))
            column = min(equal.tolist(), key=frontier.age)
            values[column] = -np.inf
            if (candidate := frontier.take(tree, column)) is not None:
                yield Rating(
                    candidate.node, candidate.edit, float(improvements[column]), float(priors[column])
                )

    def _update(self, tree: Tree) -> EditModel:
        frontier = self._frontier
        self._scanned = min([self._scanned, *frontier.update(tree)])
        model = self._model
        if model is not None and model.is_current(tree):
            model.update(frontier.rows, frontier.columns)
        else:
            frontier.shrink(tree, LARGEST_FRONTIER)
            model = self._model = EditModel(tree, frontier.vocabulary, frontier.rows, frontier.columns)
        return model

    def _leftover(self, tree: Tree) -> Step | Propose | None:
        """The oldest of the edits that would decide nothing new, for which the model sees no reason."""
        while self._scanned < len(tree.nodes):
            node = tree.nodes[self._scanned]
            if node.ready:
                candidate = Candidate(node.id, min(node.untried, default=None))
                self._frontier.watch(candidate)
                return _step(candidate)
            self._scanned += 1
        return None


def _step(candidate: Candidate) -> Step | Propose:
    return Propose(candidate.node) if candidate.edit is None else Step(candidate.node, candidate.edit)


def _one_thread() -> AbstractContextManager[Any]:
    """Meanwhile linear algebra runs on one thread in this process.

    Threads cost more than they save on tables of some hundred rows and take cores from the compilers; and what a sum
    comes to depends on how many there are: the same seed would give another tree on another machine.
    """
    limited: AbstractContextManager[Any] = _controller().limit(limits=1, user_api="blas")
    return limited


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()
