"""What every strategy keeps to, whatever comes back in whatever order."""

from __future__ import annotations

import functools
import random
import statistics
import time
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mctskernel.core.edit import Category, Edit, Factor, WholeSource
from mctskernel.core.evaluation import Evaluation, Outcome, Score, Source
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import Proposals
from mctskernel.tree.blobs import MemoryBlobs
from mctskernel.tree.fold import fold
from mctskernel.tree.journal import MemoryJournal
from mctskernel.tree.node import Tree
from mctskernel.tree.policy import Policy
from mctskernel.tree.search import Exhausted, TreeSearch, Try, Wait
from mctskernel.tree.strategies import STRATEGIES
from mctskernel.tree.strategies.strategy import Propose, Step

ONE_EDIT_AWAY = {"best-of-n"}
"""Strategies that leave what is further from the root alone."""

CHEAP = [name for name in STRATEGIES if name != "edit-model"]
"""Strategies that don't fit a model to what they know."""

OUTCOMES = (*[Outcome.OK] * 6, Outcome.BUILD_ERROR, Outcome.TIMEOUT)
LEVELS = 3


@dataclass(frozen=True)
class Landscape:
    """Kernels are cells of a grid; an edit changes one coordinate. A few edits don't apply, some kernels fail."""

    seed: int
    dimensions: int
    quarantines: bool = False

    @property
    def start(self) -> str:
        return "0" * self.dimensions

    def edits(self, kernel: str) -> tuple[Edit, ...]:
        rng = self._rng("edits", kernel)
        found = [
            Edit(
                rng.choice([Category.TUNING, Category.UNROLLING]),
                f"x{axis} = {level}",
                WholeSource(kernel[:axis] + str(level) + kernel[axis + 1 :]),
                prior=rng.choice([1.0, 2.0]),
                factors=(Factor(f"x{axis}", level),) if rng.random() < 0.8 else (),
            )
            for axis in range(self.dimensions)
            for level in range(LEVELS)
            if level != int(kernel[axis])
        ]
        return tuple(rng.sample(found, len(found)))

    def applies(self, node: int, edit: int) -> bool:
        return self._rng("applies", node, edit).random() < 0.95

    def judge(self, kernel: str) -> tuple[Evaluation, Score]:
        rng = self._rng("judge", kernel)
        outcome = Outcome.OK if kernel == self.start else rng.choice(OUTCOMES)
        strange = self.quarantines and kernel != self.start and rng.random() < 0.1
        evaluation = Evaluation(outcome, Source.MODELLED, quarantine="faster than light" if strange else "")
        # Few rewards, so that some are equal.
        reward = rng.randrange(8) / 4 if outcome is Outcome.OK else -1.5
        return evaluation, Score(reward, max(reward, 0))

    def _rng(self, *words: object) -> random.Random:
        return random.Random(f"{self.seed} {words}")  # noqa: S311


@dataclass
class Driver:
    """Searches a landscape with up to `workers` evaluations and `proposers` replies in flight."""

    landscape: Landscape
    policy: Policy
    rng: random.Random
    workers: int = 1
    proposers: int = 0
    journal: MemoryJournal = field(default_factory=MemoryJournal)
    blobs: MemoryBlobs = field(default_factory=MemoryBlobs)
    in_flight: list[int] = field(default_factory=list)
    replies: list[Propose] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.search = TreeSearch(Tree(), self.journal, self.blobs, clock=lambda: 0.0)
        self.in_flight.append(self.search.start(Kernel(self.landscape.start), self.policy, seed=5))

    @property
    def tree(self) -> Tree:
        return self.search.tree

    def step(self) -> bool:
        """One thing that may happen. False when the search says that nothing is left."""
        full = len(self.in_flight) >= self.workers
        if (self.in_flight or self.replies) and (full or self.rng.random() < 0.3):
            self._come_back()
            return True
        match self.search.ask():
            case Exhausted():
                assert not self.in_flight
                assert not self.replies
                return False
            case Wait():
                assert self.in_flight or self.replies
                self._come_back()
            case Propose() as request if len(self.replies) < self.proposers:
                self.search.asked(request)
                self.replies.append(request)
            case Propose() as request:
                self._reply(request)
            case Try() as attempt:
                self._try(attempt)
        return True

    def resume(self) -> None:
        """Another process goes on with the journal."""
        self.search = TreeSearch(fold(self.journal.events), self.journal, self.blobs, clock=lambda: 0.0)
        self.replies.clear()
        self.in_flight[:] = self.search.resume()

    def _try(self, attempt: Try) -> None:
        if not self.landscape.applies(attempt.node, attempt.number):
            self.search.refuse(attempt, "The patch doesn't fit.")
            return
        assert isinstance(attempt.edit.change, WholeSource)
        node = self.search.submit(attempt, Kernel(attempt.edit.change.source))
        if node is not None:
            self.in_flight.append(node)

    def _come_back(self) -> None:
        number = self.rng.randrange(len(self.in_flight) + len(self.replies))
        if number < len(self.in_flight):
            node = self.in_flight.pop(number)
            self.search.evaluated(node, *self.landscape.judge(self.search.kernel(node).source))
        else:
            self._reply(self.replies.pop(number - len(self.in_flight)))

    def _reply(self, request: Propose) -> None:
        known = len(self.tree.nodes[request.node].edits)
        edits = () if known else self.landscape.edits(self.search.kernel(request.node).source)
        self.search.proposed(request, Proposals(edits))


def assert_legal(tree: Tree, found: tuple[Step | Propose, ...], count: int) -> None:
    assert len(found) <= count
    assert not any(isinstance(each, Propose) for each in found[:-1])
    assert len(set(found)) == len(found)
    for each in found:
        node = tree.nodes[each.node]
        assert node.ready
        assert each.path[0] == 0
        assert len(set(each.path)) == len(each.path)
        if isinstance(each, Step):
            assert each.edit in node.untried


numbers = {
    "patience": st.integers(1, 2),
    "repair_depth": st.integers(0, 2),
    "order": st.sampled_from(["prior", "sampled", "arrival"]),
    "beam_width": st.integers(1, 3),
    "beam_edits": st.integers(1, 3),
    "annealing_walkers": st.integers(1, 3),
    "annealing_temperature": st.sampled_from([0.0, 0.2, 100.0]),
    "annealing_cooling": st.sampled_from([0.0, 0.9, 1.0]),
    "annealing_period": st.integers(1, 20),
    "genetic_crossover": st.sampled_from([0.0, 0.5, 1.0]),
    "net_radius": st.sampled_from([0.0, 0.3, 10.0]),
    "net_exploration": st.sampled_from([0.0, 0.3, 1.0]),
}

drivers = st.builds(
    Driver,
    st.builds(Landscape, st.integers(0, 10**6), st.integers(1, 3), st.booleans()),
    st.builds(Policy, **numbers),
    st.randoms(use_true_random=False),
    st.integers(1, 8),
    st.integers(0, 2),
)

each_strategy = pytest.mark.parametrize("name", STRATEGIES)


def with_strategy(driver: Driver, name: str) -> Driver:
    policy = msgspec.structs.replace(driver.policy, strategy=name)
    return Driver(driver.landscape, policy, driver.rng, driver.workers, driver.proposers)


@each_strategy
@settings(max_examples=15, deadline=None)
@given(drawn=drivers, steps=st.integers(1, 100), count=st.integers(1, 4))
def test_steps_are_legal_and_another_process_makes_the_same(
    name: str, drawn: Driver, steps: int, count: int
) -> None:
    driver = with_strategy(drawn, name)
    for number in range(steps):
        if number == steps - 1 or driver.rng.random() < 0.2:
            found = driver.search.outlook(count)
            assert_legal(driver.tree, found, count)
            assert found[:1] == driver.search.outlook(1)
            replayed = fold(driver.journal.events)
            assert driver.tree == replayed
            assert TreeSearch(replayed, MemoryJournal(), driver.blobs).outlook(count) == found
        if driver.rng.random() < 0.02:
            driver.resume()
        if not driver.step():
            break


@each_strategy
def test_another_process_makes_the_same_steps_in_a_long_search(name: str) -> None:
    policy = Policy(strategy=name, order="sampled", annealing_temperature=1.0, annealing_walkers=2)
    driver = Driver(Landscape(0, 5), policy, random.Random(0), workers=3)  # noqa: S311
    for number in range(150):
        if number % 5 == 0:
            other = TreeSearch(fold(driver.journal.events), MemoryJournal(), driver.blobs)
            assert other.outlook(1) == driver.search.outlook(1)
        assert driver.step() or name in ONE_EDIT_AWAY


@each_strategy
@settings(max_examples=15, deadline=None)
@given(drawn=drivers)
def test_a_search_ends_when_all_that_its_strategy_may_try_is_tried(name: str, drawn: Driver) -> None:
    driver = with_strategy(drawn, name)
    while driver.step():
        assert len(driver.journal.events) < 5_000
    tree = driver.tree
    reached = {driver.search.kernel(node.id).source for node in tree.nodes}
    assert all(node.evaluation for node in tree.nodes)
    expanded = tree.nodes[:1] if name in ONE_EDIT_AWAY else tree.nodes
    for node in expanded:
        assert not node.ready
        if node.outcome is Outcome.OK and node.evaluation and not node.evaluation.quarantine:
            edits = driver.landscape.edits(driver.search.kernel(node.id).source)
            assert len(node.edits) == len(edits)
            assert not node.untried
            for number, edit in enumerate(edits):
                assert isinstance(edit.change, WholeSource)
                assert edit.change.source in reached or not driver.landscape.applies(node.id, number)
    if name in ONE_EDIT_AWAY:
        assert all(node.depth <= 1 for node in tree.nodes)


@each_strategy
def test_a_budget_is_spent_where_the_space_is_larger(name: str) -> None:
    landscape = Landscape(seed=2, dimensions=60 if name in ONE_EDIT_AWAY else 6)
    driver = Driver(landscape, Policy(strategy=name), random.Random(0), workers=8, proposers=2)  # noqa: S311
    while driver.tree.evaluations < 100:
        assert driver.step()


@each_strategy
def test_nothing_is_possible_before_the_root_is_evaluated(name: str) -> None:
    rng = np.random.default_rng
    assert STRATEGIES[name]().steps(Tree(), 3, rng) == ()
    driver = Driver(Landscape(0, 2), Policy(strategy=name), random.Random(0))  # noqa: S311
    assert driver.search.outlook(3) == ()
    assert isinstance(driver.search.ask(), Wait)


@each_strategy
def test_a_root_that_failed_for_good_ends_it(name: str) -> None:
    driver = Driver(Landscape(0, 2), Policy(strategy=name), random.Random(0))  # noqa: S311
    driver.search.evaluated(0, Evaluation(Outcome.TIMEOUT, Source.MODELLED), Score(-1.6, 0))
    assert isinstance(driver.search.ask(), Exhausted)


@functools.cache
def grown(evaluations: int) -> Driver:
    driver = Driver(Landscape(1, 8), Policy(strategy="random"), random.Random(0), 4)  # noqa: S311
    while driver.tree.evaluations < evaluations:
        assert driver.step()
    return driver


@pytest.mark.parametrize("name", CHEAP)
def test_a_step_stays_cheap_as_the_tree_grows(name: str) -> None:
    def milliseconds_a_step(evaluations: int) -> float:
        driver, strategy, seconds = grown(evaluations), STRATEGIES[name](), []
        for _ in range(40):
            began = time.perf_counter()
            strategy.steps(driver.tree, 1, functools.partial(np.random.default_rng, driver.tree.events))
            seconds.append(time.perf_counter() - began)
            driver.step()
        return 1e3 * statistics.median(seconds)

    assert milliseconds_a_step(1000) < 5 * milliseconds_a_step(100) + 0.3
