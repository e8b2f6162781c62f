"""Monte Carlo tree search whose priors and leaf values come from a model of what edits do.

Each untried edit is a virtual child of its node. Its value is its score, by what edits did anywhere in
the tree, and its prior. A node's value is the greatest below it, so that the descent from the root, to the child
of the greatest value each time, ends at the most promising edit of the whole tree: it is found without it.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from functools import cache
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta
from threadpoolctl import ThreadpoolController

from mctskernel.tree.edit_model.frontier import Candidate, Frontier
from mctskernel.tree.edit_model.model import CHOSEN, EditModel
from mctskernel.tree.edit_model.score import Prospects, expected_improvement
from mctskernel.tree.node import Tree
from mctskernel.tree.strategies.strategy import Action, Generators, Propose, Step

LARGEST_FRONTIER, LARGEST_TABLE = 16384, 1 << 20
"""What may be tried, at most, and that times the kernels that are learnt from: beyond either, only edits of the fastest
nodes. An iteration reads the whole table, in about a millisecond."""

TIE = 1e-6  # values this near are equal: the older candidate is taken

TINY = 1e-300  # the least prior that counts


class MctsOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The prior of an edit counts as a factor, to the power `trust` / (`trust` + evaluations)."""

    trust: Annotated[float, Meta(gt=0)] = 10.0


class Mcts:
    """Takes the virtual child of the greatest value.

    Pending evaluations are a virtual loss: the model takes them for what it expects of them, and is less uncertain
    around them. Failures count as kernels like the median; what decides the same as a known kernel comes last.

    Sources: Silver et al., "Mastering the game of Go without human knowledge", 2017, for a model as prior and value;
    Hvarfner et al., "piBO: augmenting acquisition functions with user beliefs", 2022, for the power of the prior.
    """

    Options = MctsOptions

    def __init__(self, options: MctsOptions) -> None:
        self._trust = options.trust
        self._frontier = Frontier()
        self._model: EditModel | None = None
        self._scanned = 0

    def step(self, tree: Tree, rng: Generators) -> Action | None:  # noqa: ARG002 - a Strategy
        if not tree.evaluated:
            return None
        with _one_thread():
            found = self._most_promising(tree)
        if found is None:
            return self._leftover(tree)
        if found.edit is None:
            return Propose(found.node)
        self._frontier.watch(found)
        return Step(found.node, found.edit)

    def greatest_improvement(self, tree: Tree) -> float:
        """Return the greatest expected improvement of the logarithm of the speed-up; 0 where nothing can be tried."""
        if not tree.evaluated:
            return 0.0
        with _one_thread():
            prospects = self._prospects(tree)
        found = expected_improvement(prospects)[np.array(self._frontier.is_open, dtype=bool)]
        return prospects.spread * math.exp(found.max(initial=-math.inf))

    def _most_promising(self, tree: Tree) -> Candidate | None:
        scores, frontier = expected_improvement(self._prospects(tree)), self._frontier
        priors = np.log(np.maximum(frontier.prior, TINY)) * (
            self._trust / (self._trust + len(tree.evaluated))
        )
        values = np.where(np.array(frontier.is_open, dtype=bool), scores + priors, -np.inf)
        while len(values) and (greatest := values.max()) > -np.inf:
            equal = np.flatnonzero(values >= greatest - TIE)
            column = min(equal.tolist(), key=frontier.age)
            values[column] = -np.inf
            if (candidate := frontier.take(tree, column)) is not None:
                return candidate
        return None

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

    def _leftover(self, tree: Tree) -> Action | None:
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
    return min(LARGEST_FRONTIER, LARGEST_TABLE // max(observations, 1))


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
