"""A tree that is grown wherever a test wants it, and not where selection would lead."""

from __future__ import annotations

import itertools
from typing import Any

from mctskernel.core.edit import Category, Edit, Factor, WholeSource
from mctskernel.core.evaluation import Evaluation, Outcome, Score, Source
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import Proposals
from mctskernel.tree.blobs import MemoryBlobs
from mctskernel.tree.edit_statistics import EditStatistics
from mctskernel.tree.journal import MemoryJournal
from mctskernel.tree.node import Node, Tree
from mctskernel.tree.policy import Policy
from mctskernel.tree.search import TreeSearch, Try
from mctskernel.tree.strategies.strategy import Propose

SOURCES = itertools.count()

WALK: dict[str, Any] = {"strategy": "mcts", "prior": "given", "exploration": 1.4, "virtual_loss": 1.0}
"""A walk that can be followed by hand: nothing is drawn."""


def edit(title: str = "", category: Category = Category.TUNING, prior: float = 1.0, **levels: float) -> Edit:
    """An edit to a kernel that no other edit makes; keywords are its factors."""
    factors = tuple(Factor(name, level) for name, level in levels.items())
    source = WholeSource(f"kernel {next(SOURCES)}")
    return Edit(category, title or str(levels), source, prior=prior, factors=factors)


class Grown:
    """A tree whose root is evaluated."""

    def __init__(self, source: str = "root", reward: float = 0.0, seed: int = 1, **policy: Any) -> None:
        self.journal, self.blobs = MemoryJournal(), MemoryBlobs()
        self.search = TreeSearch(Tree(), self.journal, self.blobs, clock=lambda: 0.0)
        self.search.start(Kernel(source), Policy(**WALK | policy), seed=seed)
        self.tell(0, reward)

    @property
    def tree(self) -> Tree:
        return self.search.tree

    def node(self, number: int) -> Node:
        return self.tree.nodes[number]

    def offer(self, node: int, *edits: Edit) -> None:
        """Further edits of a node."""
        self.search.proposed(Propose(tuple(self.tree.lineage(node))), Proposals(edits))

    def begin(self, node: int, number: int) -> int:
        """Submits the kernel of an edit. Returns its node."""
        attempt = Try(tuple(self.tree.lineage(node)), number, self.search.edit(node, number))
        assert isinstance(attempt.edit.change, WholeSource)
        made = self.search.submit(attempt, Kernel(attempt.edit.change.source))
        assert made is not None
        return made

    def tell(self, node: int, reward: float, outcome: Outcome = Outcome.OK) -> None:
        speedup = reward if outcome is Outcome.OK else 0.0
        self.search.evaluated(node, Evaluation(outcome, Source.MODELLED), Score(reward, speedup))

    def make(self, node: int, number: int, reward: float, outcome: Outcome = Outcome.OK) -> int:
        """Submits and evaluates the kernel of an edit. Returns its node."""
        made = self.begin(node, number)
        self.tell(made, reward, outcome)
        return made

    def grow(self, node: int, *rewards: float, outcome: Outcome = Outcome.OK) -> list[int]:
        """Evaluates a new edit of a node for each reward. Returns their nodes."""
        first = len(self.node(node).edits)
        self.offer(node, *(edit(f"{node} {first + i}") for i in range(len(rewards))))
        return [self.make(node, first + i, reward, outcome) for i, reward in enumerate(rewards)]

    def statistics(self, shrinkage: float = 1.0) -> EditStatistics:
        found = EditStatistics(shrinkage)
        found.follow(self.tree)
        return found

    def path(self) -> tuple[int, ...]:
        """Where the search goes next."""
        request = self.search.ask()
        assert isinstance(request, Propose | Try), request
        return request.path
