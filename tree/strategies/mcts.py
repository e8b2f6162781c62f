"""Monte Carlo tree search whose priors and leaf values come from a model of what edits do.

Each untried edit is a virtual child of its node. Its value is its score, by what edits did anywhere in
the tree, and its prior. A node's value is the greatest below it, so that the walk from the root, to the child
of the greatest value each time, ends at the most promising edit of the whole tree: it is found without walking.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta
from threadpoolctl import ThreadpoolController

from mctskernel.registry import find_function
from mctskernel.tree.edit_model.frontier import Candidate, Frontier
from mctskernel.tree.edit_model.model import CHOSEN, EditModel
from mctskernel.tree.edit_model.score import Prospects, Score, expected_improvement
from mctskernel.tree.node import Tree
from mctskernel.tree.strategies.strategy import (
    MOST_RIVALS,
    Choice,
    Explanation,
    Generators,
    Propose,
    Rival,
    Step,
)

LARGEST_FRONTIER, LARGEST_TABLE = 16384, 1 << 20
"""What may be tried, at most, and that times the kernels that are learnt from: beyond either, only edits of the fastest
nodes. An iteration reads the whole table, in about a millisecond."""

TIE = 1e-6
"""Values this near are equal: the older candidate is taken."""

TINY = 1e-300
"""The least prior that counts."""


class MctsOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`score` is the registered name of what values an edit by the model (kind `score`).

    The prior of an edit counts as a factor, to the power `trust` / (`trust` + evaluations).
    """

    score: str = "expected-improvement"
    trust: Annotated[float, Meta(gt=0)] = 10.0


@dataclass(frozen=True)
class Rating:
    """An edit of a node, or a further reply of its proposer (None): logarithms of its score and of its prior."""

    node: int
    edit: int | None
    score: float
    prior: float

    @property
    def value(self) -> float:
        """What candidates are ranked by."""
        return self.score + self.prior


class Mcts:
    """Takes the virtual child of the greatest value.

    Pending evaluations are a virtual loss: the model takes them for what it expects of them, and is less uncertain
    around them. Failures count as kernels like the median; what decides the same as a known kernel comes last.

    Sources: Silver et al., "Mastering the game of Go without human knowledge", 2017, for a model as prior and value;
    Hvarfner et al., "piBO: augmenting acquisition functions with user beliefs", 2022, for the power of the prior.
    """

    Options = MctsOptions

    def __init__(self, options: MctsOptions) -> None:
        self._score: Score = find_function("score", options.score)
        self._trust = options.trust
        self._frontier = Frontier()
        self._model: EditModel | None = None
        self._scanned = 0

    def step(self, tree: Tree, rng: Generators) -> Step | Propose | None:  # noqa: ARG002 - a Strategy
        """The most promising edit."""
        for found in self.ratings(tree, 1):
            if found.edit is None:
                return Propose(found.node)
            edit = found.edit
            self._frontier.watch(Candidate(found.node, edit))
            return Step(found.node, edit)
        return self._leftover(tree) if tree.evaluated else None

    def ratings(self, tree: Tree, most: int) -> tuple[Rating, ...]:
        """The most promising edits, the best first."""
        with _one_thread():
            return tuple(islice(self._ratings(tree), most)) if tree.evaluated else ()

    def greatest_improvement(self, tree: Tree) -> float:
        """The greatest expected improvement of the logarithm of the speed-up; 0 where nothing can be tried."""
        if not tree.evaluated:
            return 0.0
        with _one_thread():
            prospects = self._prospects(tree)
        found = expected_improvement(prospects)[np.array(self._frontier.is_open, dtype=bool)]
        return prospects.spread * math.exp(found.max(initial=-math.inf))

    def explain(self, tree: Tree, parent: int, edit: int) -> Explanation:
        """The most promising edits."""
        rivals = tuple(
            Rival(
                _label(tree, each),
                None,
                (each.score, each.prior, each.value),
                (each.node, each.edit) == (parent, edit),
            )
            for each in self.ratings(tree, MOST_RIVALS)
        )
        notes = [
            "The walk follows the greatest value below, so that it ends at the most promising edit of the tree."
        ]
        if not any(rival.chosen for rival in rivals):
            notes.append(
                f"It isn't among the first {len(rivals)}: other evaluations were pending, or it was a repair."
            )
        columns = ("log score", "log prior", "value")
        return Explanation((Choice("Edits of the whole tree", columns, rivals),), tuple(notes))

    def _ratings(self, tree: Tree) -> Iterator[Rating]:
        scores, frontier = self._score(self._prospects(tree)), self._frontier
        priors = np.log(np.maximum(frontier.prior, TINY)) * (
            self._trust / (self._trust + len(tree.evaluated))
        )
        values = np.where(np.array(frontier.is_open, dtype=bool), scores + priors, -np.inf)
        while len(values) and (greatest := values.max()) > -np.inf:
            equal = np.flatnonzero(values >= greatest - TIE)
            column = min(equal.tolist(), key=frontier.age)
            values[column] = -np.inf
            if (candidate := frontier.take(tree, column)) is not None:
                yield Rating(candidate.node, candidate.edit, float(scores[column]), float(priors[column]))

    def _prospects(self, tree: Tree) -> Prospects:
        frontier = self._frontier
        self._scanned = min([self._scanned, *frontier.update(tree)])
        model = self._model
        if model is None or not model.is_current(tree):
            frontier.shrink(tree, _room(min(len(tree.evaluated), CHOSEN)))
            model = self._model = EditModel(tree, frontier.vocabulary, frontier.rows, frontier.columns)
            return model.prospects(tree)
        model.update(frontier.rows, frontier.columns)
        room = _room(model.observations)
        if len(frontier.columns) > 2 * room:
            model.keep(frontier.shrink(tree, room))
        return model.prospects(tree)

    def _leftover(self, tree: Tree) -> Step | Propose | None:
        """The oldest of the edits that would decide nothing new, for which the model sees no reason."""
        while self._scanned < len(tree.nodes):
            node = tree.nodes[self._scanned]
            if node.ready:
                edit = min(node.untried, default=None)
                self._frontier.watch(Candidate(node.id, edit))
                return Propose(node.id) if edit is None else Step(node.id, edit)
            self._scanned += 1
        return None


def _room(observations: int) -> int:
    """How many candidates the model may have."""
    return min(LARGEST_FRONTIER, LARGEST_TABLE // max(observations, 1))


def _label(tree: Tree, rating: Rating) -> str:
    if rating.edit is None:
        return f"node {rating.node}: edits that its proposer hasn't proposed yet"
    return f"node {rating.node}: {tree.nodes[rating.node].edits[rating.edit].title}"


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
