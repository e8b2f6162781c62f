"""A search over made-up kernels, told event by event."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mctskernel.core.edit import Category, Edit, WholeSource
from mctskernel.core.evaluation import Evaluation, Outcome, Score, Source
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import Proposals
from mctskernel.tree.blobs import MemoryBlobs
from mctskernel.tree.fold import fold
from mctskernel.tree.journal import MemoryJournal
from mctskernel.tree.node import Tree
from mctskernel.tree.policy import Policy
from mctskernel.tree.search import Exhausted, TreeSearch, Try, Wait
from mctskernel.tree.strategies.strategy import Propose
from tests.tree.by_hand import WALK


def result(reward: float, outcome: Outcome = Outcome.OK, **facts: Any) -> tuple[Evaluation, Score]:
    """An evaluation and its score; the speed-up is the reward where the outcome is ok."""
    speedup = reward if outcome is Outcome.OK else 0.0
    evaluation = Evaluation(outcome, Source.MODELLED, **facts)
    return evaluation, Score(reward, speedup, {"time": reward})


class Story:
    """Tells a search what happens, one plain sentence a call."""

    def __init__(self, **policy: Any) -> None:
        self.journal = MemoryJournal()
        self.search = TreeSearch(Tree(), self.journal, MemoryBlobs(), clock=lambda: 0.0)
        self.search.start(Kernel("root"), Policy(**WALK | policy), seed=1)

    @property
    def tree(self) -> Tree:
        return self.search.tree

    def evaluate(self, node: int, reward: float, outcome: Outcome = Outcome.OK, **facts: Any) -> None:
        self.search.evaluated(node, *result(reward, outcome, **facts))

    def propose(self, *sources: str, priors: Sequence[float] = ()) -> int:
        """Answers the next request, which must be one for edits. Returns its node."""
        request = self.search.ask()
        assert isinstance(request, Propose), request
        return self.propose_to(request, *sources, priors=priors)

    def propose_to(self, request: Propose, *sources: str, priors: Sequence[float] = ()) -> int:
        """Answers a request. Returns its node."""
        edits = [
            Edit(Category.TUNING, source, WholeSource(source), prior=priors[i] if priors else 1.0)
            for i, source in enumerate(sources)
        ]
        self.search.proposed(request, Proposals(tuple(edits)))
        return request.node

    def next_try(self) -> Try:
        attempt = self.search.ask()
        assert isinstance(attempt, Try), attempt
        return attempt

    def submit(self) -> tuple[Try, int | None]:
        """Submits what is to be tried next."""
        attempt = self.next_try()
        assert isinstance(attempt.edit.change, WholeSource)
        return attempt, self.search.submit(attempt, Kernel(attempt.edit.change.source))

    def try_next(self, reward: float, outcome: Outcome = Outcome.OK) -> int:
        """Submits and evaluates what is to be tried next. Returns its node, which must be new."""
        _, node = self.submit()
        assert node is not None
        self.evaluate(node, reward, outcome)
        return node

    def must_wait(self) -> bool:
        return isinstance(self.search.ask(), Wait)

    def is_exhausted(self) -> bool:
        return isinstance(self.search.ask(), Exhausted)

    def replayed(self) -> Tree:
        return fold(self.journal.events)


@pytest.fixture(scope="session")
def tell() -> Callable[..., Story]:
    """Begins a story; keywords are those of Policy."""
    return Story
