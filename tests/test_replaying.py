"""A recorded search, repeated: the same results in the same order make the same tree."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from mctskernel.core.evaluation import Evaluation
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import ProposalRequest, Proposals
from mctskernel.correspondence import Correspondence, Correspondents
from mctskernel.replaying import Schedule, ScheduledCorrespondence, ScheduledExecutor
from mctskernel.run import Budget
from mctskernel.search import Ending, Search
from mctskernel.tree.blobs import MemoryBlobs
from mctskernel.tree.events import Evaluated, Event
from mctskernel.tree.journal import MemoryJournal
from mctskernel.tree.node import Tree
from mctskernel.tree.policy import Policy
from mctskernel.tree.search import TreeSearch
from tests import landscape


class AnyOrder(landscape.InProcess):
    """Finishes any of what is in flight."""

    def __init__(self, capacity: int, seed: int) -> None:
        super().__init__(capacity)
        self._rng = random.Random(seed)  # noqa: S311 - repeatable, not secret

    def wait(self, timeout: float | None = None) -> list[tuple[int, Evaluation]]:
        self._rng.shuffle(self._waiting)
        return super().wait(timeout)


class Thinking(landscape.Neighbours):
    """Takes a while, and never the same."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)  # noqa: S311 - repeatable, not secret

    def propose(self, request: ProposalRequest) -> Proposals:
        time.sleep(self._rng.choice((0.0, 0.001, 0.003)))
        return super().propose(request)


def search(
    seed: int, recorded: Sequence[Event] = (), start: Kernel | None = None
) -> tuple[tuple[Event, ...], Schedule]:
    tree, journal = Tree(), MemoryJournal()
    schedule = Schedule(recorded, tree)
    correspondence: Correspondence = Correspondents(Thinking(seed), 3)
    if recorded:
        correspondence = ScheduledCorrespondence(correspondence, schedule)
    executor = AnyOrder(4, seed)
    loop = Search(
        tree_search=TreeSearch(tree, journal, MemoryBlobs(), clock=lambda: 0.0),
        task=landscape.task(),
        proposer=landscape.Neighbours(),
        executor=ScheduledExecutor(executor, schedule) if recorded else executor,
        budget=Budget(evaluations=100),
        follow=lambda _: None,
        correspondence=correspondence,
    )
    root = loop.tree_search.start(start or loop.task.starting_kernel, Policy(strategy="mcts"), 0)
    assert loop.run((root,)) is Ending.BUDGET
    return tuple(journal.events), schedule


@pytest.mark.parametrize("seed", range(5))
def test_a_replayed_search_makes_every_decision_again(seed: int) -> None:
    recorded, _ = search(seed)
    replayed, schedule = search(seed + 100, recorded)
    assert replayed == recorded
    assert not schedule.diverged


def test_without_its_order_a_search_goes_another_way() -> None:
    assert search(0)[0] != search(100)[0], "or the test above shows nothing"


def test_a_search_that_goes_another_way_goes_on_and_says_so() -> None:
    recorded, _ = search(0)
    replayed, schedule = search(1, recorded, landscape.kernel(3, 3))
    assert schedule.diverged
    assert len([event for event in replayed if isinstance(event, Evaluated)]) == 100


class Once:
    """Finishes one node, and then nothing for ever."""

    def __init__(self, node: int, evaluation: Evaluation) -> None:
        self._finished, self._waits = [(node, evaluation)], 0

    def wait(self, timeout: float | None = None) -> list[tuple[int, Evaluation]]:
        self._waits += 1
        assert self._waits < 10, "it waits for what was never asked for"
        finished, self._finished = self._finished, []
        return finished


def test_what_was_never_asked_for_is_not_waited_for_behind_what_was() -> None:
    first, second, *_ = (event for event in search(0)[0] if isinstance(event, Evaluated))
    tree = SimpleNamespace(events=0, pending={first.node: None}, awaiting={})
    schedule = Schedule((first, second), tree)
    due = ScheduledExecutor(Once(first.node, first.evaluation), schedule).wait()
    assert [node for node, _ in due] == [first.node]
    assert schedule.diverged
