"""Searches guided by a surrogate, on a landscape that needs no compiler."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import pytest

from mctskernel.core.edit import Category, Edit, WholeSource
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import ProposalRequest, Proposals
from mctskernel.core.surrogate import Prediction
from mctskernel.forecast import Forecaster
from mctskernel.predictions import Predictions
from mctskernel.run import Budget
from mctskernel.search import Ending, Search
from mctskernel.tree.blobs import MemoryBlobs
from mctskernel.tree.events import Event, Predicted, Resumed
from mctskernel.tree.fold import fold
from mctskernel.tree.journal import MemoryJournal
from mctskernel.tree.node import Tree
from mctskernel.tree.policy import Policy
from mctskernel.tree.search import TreeSearch
from tests import landscape

WALK = Policy(strategy="mcts", exploration=1.4, prior="given")
GUIDED = {
    "order": msgspec.structs.replace(WALK, order="predicted"),
    "filter": msgspec.structs.replace(WALK, order="predicted", lookahead=4),
}


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
    seconds: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Search:
    return Search(
        tree_search=tree_search,
        task=landscape.task(),
        proposer=Jumps(),
        executor=landscape.InProcess(capacity),
        budget=Budget(evaluations=evaluations, seconds=seconds),
        follow=lambda _: None,
        stop_requested=stop_requested,
        clock=clock,
        forecaster=Forecaster(tree_search, Predictions(oracle), wait) if oracle else None,
    )


def begun(policy: Policy | None = None, blobs: MemoryBlobs | None = None) -> tuple[TreeSearch, MemoryJournal]:
    journal = MemoryJournal()
    search = TreeSearch(Tree(), journal, blobs or MemoryBlobs(), clock=lambda: 0.0)
    search.start(landscape.kernel(1, 1), policy or WALK, 0)
    return search, journal


def grown(
    policy: Policy | None, oracle: Oracle | None, *, blobs: MemoryBlobs | None = None, **options: object
) -> tuple[Tree, MemoryJournal]:
    tree_search, journal = begun(policy, blobs)
    search_for(tree_search, oracle, **options).run((0,))  # type: ignore[arg-type]
    return tree_search.tree, journal


def identities(tree: Tree) -> list[str]:
    return [node.kernel.identity for node in tree.nodes]


def evaluations_to_the_best(tree: Tree) -> int:
    return identities(tree).index(landscape.kernel(*landscape.BEST).identity)


@pytest.mark.parametrize("mode", GUIDED)
def test_a_surrogate_that_knows_leads_straight_to_the_best(mode: str) -> None:
    unguided, _ = grown(None, None, evaluations=80)
    guided, _ = grown(GUIDED[mode], Oracle())
    assert evaluations_to_the_best(guided) < 0.6 * evaluations_to_the_best(unguided)


@pytest.mark.parametrize("mode", GUIDED)
def test_a_surrogate_that_is_wrong_everywhere_cannot_hide_the_best(mode: str) -> None:
    tree, _ = grown(GUIDED[mode], Oracle(is_wrong), evaluations=90)
    assert landscape.kernel(*landscape.BEST).identity in identities(tree)


@pytest.mark.parametrize("mode", GUIDED)
def test_the_same_seed_gives_the_same_journal_in_whatever_order_answers_come(mode: str) -> None:
    journals = [grown(GUIDED[mode], Oracle(at_a_time=count))[1].events for count in (1, 100)]
    assert journals[0] == journals[1]


def test_without_a_surrogate_nothing_is_predicted() -> None:
    tree, journal = grown(None, None)
    assert not [event for event in journal.events if isinstance(event, Predicted)]
    assert not [node for node in tree.nodes if node.prediction or node.predictions]


def test_a_surrogate_that_never_answers_changes_nothing_where_nobody_waits() -> None:
    unguided, _ = grown(None, None)
    guided, journal = grown(GUIDED["order"], Oracle(at_a_time=0), wait=False)
    assert identities(guided) == identities(unguided)
    assert not [event for event in journal.events if isinstance(event, Predicted)]


@pytest.mark.parametrize("mode", GUIDED)
def test_predictions_that_come_late_are_bounded_and_still_lead(mode: str) -> None:
    oracle = Oracle(at_a_time=5)
    tree, _ = grown(GUIDED[mode], oracle, wait=False, capacity=3)
    unguided, _ = grown(None, None, capacity=3, evaluations=80)
    assert oracle.most_waiting <= 2 * oracle.capacity
    assert evaluations_to_the_best(tree) < evaluations_to_the_best(unguided)


def test_no_kernel_is_predicted_twice() -> None:
    oracle = Oracle()
    grown(GUIDED["order"], oracle)
    asked = [kernel.identity for kernel in oracle.asked]
    assert len(set(asked)) == len(asked)


def test_gains_are_relative_to_the_parent() -> None:
    tree, _ = grown(GUIDED["order"], Oracle())
    for node in tree.nodes:
        for found in node.predictions.values():
            if found.seconds is None or node.score is None or not node.score.speedup:
                continue
            own = 3e-3 * 38 / node.score.speedup
            assert found.gain == pytest.approx(own / found.seconds)


@pytest.mark.parametrize("mode", GUIDED)
@pytest.mark.parametrize("kept", [0.2, 0.55, 0.9])
def test_a_search_cut_off_anywhere_goes_on_as_if_it_had_not_been(mode: str, kept: float) -> None:
    blobs = MemoryBlobs()
    whole, journal = grown(GUIDED[mode], Oracle(), blobs=blobs)
    cut: list[Event] = journal.events[: max(2, int(len(journal.events) * kept))]
    rest = MemoryJournal()
    tree_search = TreeSearch(fold(cut), rest, blobs, clock=lambda: 0.0)
    assert search_for(tree_search, Oracle()).run(tree_search.resume()) is Ending.BUDGET
    assert isinstance(rest.events[0], Resumed)
    assert identities(tree_search.tree) == identities(whole)
    assert [node.predictions.keys() for node in tree_search.tree.nodes] == [
        node.predictions.keys() for node in whole.nodes
    ]


def test_a_search_that_is_told_to_stop_does_not_wait_for_predictions() -> None:
    oracle = Oracle(at_a_time=0)
    tree_search, _ = begun(GUIDED["order"])
    search = search_for(tree_search, oracle, stop_requested=lambda: bool(oracle.asked))
    assert search.run((0,)) is Ending.INTERRUPTED


@dataclass
class Clock:
    """Seconds that pass for whoever waits."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Silent(Oracle):
    """Never answers, and takes its time over that."""

    clock: Clock = field(default_factory=Clock)

    def wait(self, timeout: float | None = None) -> list[tuple[int, Prediction | None]]:
        assert self.clock.now < 61.0, "nobody should be waiting any more"
        self.clock.now += timeout or 0.0
        return []


def test_the_wait_for_predictions_ends_with_the_budget_of_seconds() -> None:
    oracle = Silent()
    tree_search, _ = begun(GUIDED["order"])
    search = search_for(tree_search, oracle, seconds=60.0, clock=oracle.clock)
    assert search.run((0,)) is Ending.BUDGET
    assert oracle.asked
    assert len(tree_search.tree.nodes) == 1, "nothing is begun after the end"
