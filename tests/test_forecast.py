"""Searches guided by a surrogate, on a landscape that needs no compiler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from mctskernel.core.budget import Budget
from mctskernel.core.edit import Category, Edit, WholeSource
from mctskernel.core.executor import Prediction
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import ProposalRequest, Proposals
from mctskernel.executors.forecaster import Forecaster
from mctskernel.loop import Search, StopReason
from mctskernel.tree.blobs import MemoryBlobs
from mctskernel.tree.events import Event, Resumed
from mctskernel.tree.journal import MemoryJournal
from mctskernel.tree.node import Tree
from mctskernel.tree.policy import Policy
from mctskernel.tree.replay import replay
from mctskernel.tree.search import TreeSearch
from tests import landscape


def knows(kernel: Kernel) -> Prediction | None:
    """What the landscape will say, with a constant factor wrong."""
    return Prediction(3 * landscape.seconds(kernel), {"DRAM": 1.0}) if landscape.judge(kernel).ok else None


def is_wrong(kernel: Kernel) -> Prediction:
    return Prediction(1 / landscape.seconds(kernel), {})


class Jumps:
    """Proposes 24 jumps, the best of which come last."""

    name = "jumps"

    def propose(self, request: ProposalRequest) -> Proposals:
        x, y = request.kernel.macros["X"], request.kernel.macros["Y"]
        moves = ((x + a, y - b) for a in range(-2, 3) for b in range(-2, 3) if a or b)
        kernels = (landscape.kernel(*move) for move in moves)
        return Proposals(tuple(Edit(Category.TUNING, k.source, WholeSource(k.source)) for k in kernels))


@dataclass
class Oracle:
    """Answers the newest question first, some at a time, or never."""

    says: Callable[[Kernel], Prediction | None] = knows
    at_a_time: int = 3
    capacity: int = 2
    asked: list[Kernel] = field(default_factory=list)
    most_waiting: int = 0
    _waiting: list[tuple[int, Kernel]] = field(default_factory=list)

    def submit(self, ticket: int, kernel: Kernel) -> None:
        self.asked.append(kernel)
        self._waiting.append((ticket, kernel))
        self.most_waiting = max(self.most_waiting, len(self._waiting))

    def wait(self, timeout: float | None = None) -> list[tuple[int, Prediction | None]]:
        answered = [self._waiting.pop() for _ in range(min(self.at_a_time, len(self._waiting)))]
        return [(ticket, self.says(kernel)) for ticket, kernel in answered]

    def uncertainty(self, first: Prediction, second: Prediction) -> float:
        return 0.01

    def close(self) -> None:
        self._waiting.clear()


def search_for(
    tree_search: TreeSearch,
    oracle: Oracle | None,
    *,
    wait: bool = True,
    evaluations: int = 40,
    capacity: int = 1,
    stop_requested: Callable[[], bool] = lambda: False,
) -> Search:
    return landscape.search(
        Budget(evaluations=evaluations),
        landscape.InProcess(capacity),
        tree_search,
        proposer=Jumps(),
        stop_requested=stop_requested,
        forecaster=Forecaster(tree_search, oracle, wait) if oracle else None,
    )


def begun(blobs: MemoryBlobs | None = None) -> tuple[TreeSearch, MemoryJournal]:
    journal = MemoryJournal()
    search = TreeSearch(Tree(), journal, blobs or MemoryBlobs(), clock=lambda: 0.0)
    search.start(landscape.kernel(1, 1), Policy(), 0)
    return search, journal


def grown(
    oracle: Oracle | None, *, blobs: MemoryBlobs | None = None, **options: Any
) -> tuple[Tree, MemoryJournal]:
    tree_search, journal = begun(blobs)
    search_for(tree_search, oracle, **options).run((0,))
    return tree_search.tree, journal


def identities(tree: Tree) -> list[str]:
    return [node.kernel.identity for node in tree.nodes]


def evaluations_to_the_best(tree: Tree) -> int:
    return identities(tree).index(landscape.kernel(*landscape.BEST).identity)


def test_a_surrogate_that_knows_leads_straight_to_the_best() -> None:
    unguided, _ = grown(None, evaluations=80)
    guided, _ = grown(Oracle())
    assert evaluations_to_the_best(guided) < 0.6 * evaluations_to_the_best(unguided)


def test_a_surrogate_that_is_wrong_everywhere_cannot_hide_the_best() -> None:
    tree, _ = grown(Oracle(is_wrong), evaluations=90)
    assert landscape.kernel(*landscape.BEST).identity in identities(tree)


def test_the_same_seed_gives_the_same_journal_in_whatever_order_answers_come() -> None:
    journals = [grown(Oracle(at_a_time=count))[1].events for count in (1, 100)]
    assert journals[0] == journals[1]


def test_predictions_that_come_late_are_bounded_and_still_lead() -> None:
    oracle = Oracle(at_a_time=5)
    tree, _ = grown(oracle, wait=False, capacity=3, evaluations=60)
    unguided, _ = grown(None, capacity=3, evaluations=80)
    assert oracle.most_waiting <= 2 * oracle.capacity
    assert evaluations_to_the_best(tree) < evaluations_to_the_best(unguided)


@pytest.mark.parametrize("kept", [0.2, 0.55, 0.9])
def test_a_search_cut_off_anywhere_goes_on_as_if_it_had_not_been(kept: float) -> None:
    blobs = MemoryBlobs()
    whole, journal = grown(Oracle(), blobs=blobs)
    cut: list[Event] = journal.events[: max(2, int(len(journal.events) * kept))]
    rest = MemoryJournal()
    tree_search = TreeSearch(replay(cut), rest, blobs, clock=lambda: 0.0)
    assert search_for(tree_search, Oracle()).run(tree_search.resume()) is StopReason.BUDGET
    assert isinstance(rest.events[0], Resumed)
    assert identities(tree_search.tree) == identities(whole)
    assert [node.predictions.keys() for node in tree_search.tree.nodes] == [
        node.predictions.keys() for node in whole.nodes
    ]


def test_a_search_that_is_told_to_stop_does_not_wait_for_predictions() -> None:
    oracle = Oracle(at_a_time=0)
    tree_search, _ = begun()
    search = search_for(tree_search, oracle, stop_requested=lambda: bool(oracle.asked))
    assert search.run((0,)) is StopReason.INTERRUPTED
