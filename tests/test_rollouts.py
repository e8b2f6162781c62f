"""Searches that roll nodes out by a surrogate, on a landscape that needs no compiler."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from mctskernel.core.proposer import ProposalRequest, Proposals
from mctskernel.forecast import Forecaster
from mctskernel.predictions import Predictions
from mctskernel.rollouts import Rollouts
from mctskernel.run import Budget
from mctskernel.search import Ending, Search
from mctskernel.tree.blobs import MemoryBlobs
from mctskernel.tree.events import Evaluated, Event, Resumed, RolledOut, Submitted
from mctskernel.tree.fold import fold
from mctskernel.tree.journal import MemoryJournal
from mctskernel.tree.node import Tree
from mctskernel.tree.policy import Policy
from mctskernel.tree.search import TreeSearch
from tests import landscape
from tests.test_forecast import Clock, Oracle, Silent, begun, identities

POLICIES = {
    "sampled": Policy(strategy="mcts", order="predicted", rollout="sampled", rollout_depth=4),
    "greedy": Policy(strategy="mcts", rollout="greedy"),
}


@dataclass
class Neighbours(landscape.Neighbours):
    """Costs a dollar a reply."""

    asked: list[ProposalRequest] = field(default_factory=list)

    def propose(self, request: ProposalRequest) -> Proposals:
        self.asked.append(request)
        return Proposals(super().propose(request).edits, dollars=1.0)


def search_for(
    tree_search: TreeSearch,
    oracle: Oracle,
    *,
    wait: bool = True,
    evaluations: int = 30,
    capacity: int = 1,
    **options: Any,
) -> Search:
    predictions = Predictions(oracle)
    return Search(
        tree_search=tree_search,
        task=landscape.task(),
        proposer=Neighbours(),
        executor=landscape.InProcess(capacity),
        budget=Budget(evaluations=evaluations, seconds=options.pop("seconds", None)),
        follow=lambda _: None,
        forecaster=Forecaster(tree_search, predictions, wait),
        rollouts=Rollouts(tree_search, landscape.task(), predictions, wait, landscape.Neighbours()),
        **options,
    )


def grown(
    policy: Policy, oracle: Oracle, blobs: MemoryBlobs | None = None, **options: Any
) -> tuple[Tree, list[Event]]:
    tree_search, journal = begun(policy, blobs)
    search_for(tree_search, oracle, **options).run((0,))
    return tree_search.tree, journal.events


def rollouts_in(events: list[Event]) -> list[RolledOut]:
    return [event for event in events if isinstance(event, RolledOut)]


@pytest.mark.parametrize("name", POLICIES)
def test_every_kernel_that_is_right_is_rolled_out_before_the_next_is_tried(name: str) -> None:
    tree, events = grown(POLICIES[name], Oracle(), evaluations=60)
    right = [node.id for node in tree.nodes[1:] if node.evaluation and node.evaluation.ok]
    assert len(right) < len(tree.nodes) - 1, "some failed"
    *before, last = [event.node for event in events if isinstance(event, Evaluated)]
    assert [event.node for event in rollouts_in(events)] == [node for node in before if node in right]
    open_node = None
    for event in events:
        if isinstance(event, Evaluated) and event.node in right:
            open_node = event.node
        elif isinstance(event, RolledOut):
            assert event.node == open_node
            open_node = None
        elif isinstance(event, Submitted):
            assert open_node is None
    assert open_node in (None, last)


def test_gains_are_over_the_node_and_a_line_goes_one_step_at_a_time_to_what_nobody_has() -> None:
    policy = POLICIES["sampled"]
    tree, events = grown(policy, Oracle())
    for position, event in enumerate(events):
        if not isinstance(event, RolledOut):
            continue
        known = {each.identity for each in events[:position] if isinstance(each, Submitted)}
        line = [_coordinates(step.edit) for step in event.steps]
        assert len(line) <= policy.rollout_depth
        assert len(set(line)) == len(line)
        own = landscape.seconds(landscape.kernel(*_node_coordinates(tree, event.node)))
        for (x, y), (new_x, new_y) in pairwise([_node_coordinates(tree, event.node), *line]):
            assert abs(x - new_x) + abs(y - new_y) == 1
        for step, place in zip(event.steps, line, strict=True):
            kernel = landscape.kernel(*place)
            assert kernel.identity not in known
            expected = own / landscape.seconds(kernel) if landscape.judge(kernel).ok else 0.0
            assert step.prediction.gain == pytest.approx(expected)
        gains = [step.prediction.gain for step in event.steps]
        believed = [gain for gain in gains if gain > 0 and math.log(gain) > 0.01]
        assert tree.rollouts[event.node] == pytest.approx(max(believed, default=1.0))


def _node_coordinates(tree: Tree, node: int) -> tuple[int, int]:
    made = tree.nodes[node]
    if made.parent is None or made.edit is None:
        return 1, 1
    return _coordinates(tree.nodes[made.parent].edits[made.edit].title)


def _coordinates(title: str) -> tuple[int, int]:
    x, y = (int(word.split("=")[1]) for word in title.split())
    return x, y


@pytest.mark.parametrize("name", POLICIES)
def test_the_same_seed_gives_the_same_journal_in_whatever_order_answers_come(name: str) -> None:
    journals = [grown(POLICIES[name], Oracle(at_a_time=count))[1] for count in (1, 100)]
    assert journals[0] == journals[1]


def test_lines_differ_from_seed_to_seed_if_they_are_drawn() -> None:
    def lines(seed: int) -> list[RolledOut]:
        journal = MemoryJournal()
        tree_search = TreeSearch(Tree(), journal, MemoryBlobs(), clock=lambda: 0.0)
        tree_search.start(landscape.kernel(1, 1), POLICIES["sampled"], seed)
        search_for(tree_search, Oracle(), evaluations=6).run((0,))
        return rollouts_in(journal.events)

    assert lines(0) == lines(0) != lines(1)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("kept", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_a_search_cut_off_anywhere_goes_on_as_if_it_had_not_been(name: str, kept: float) -> None:
    blobs = MemoryBlobs()
    whole, events = grown(POLICIES[name], Oracle(), blobs)
    rest = MemoryJournal()
    tree_search = TreeSearch(fold(events[: int(len(events) * kept)]), rest, blobs, clock=lambda: 0.0)
    assert search_for(tree_search, Oracle()).run(tree_search.resume()) is Ending.BUDGET
    assert isinstance(rest.events[0], Resumed)
    assert identities(tree_search.tree) == identities(whole)
    assert tree_search.tree.rollouts == whole.rollouts


def test_rollouts_ask_no_proposer_that_costs_money_and_about_no_kernel_twice() -> None:
    oracle = Oracle()
    tree_search, _ = begun(POLICIES["sampled"])
    search = search_for(tree_search, oracle)
    search.run((0,))
    assert isinstance(search.proposer, Neighbours)
    assert tree_search.tree.rollouts
    assert len(search.proposer.asked) == len(tree_search.tree.replied) == tree_search.tree.dollars
    asked = [kernel.identity for kernel in oracle.asked]
    assert len(set(asked)) == len(asked)


def test_where_nobody_waits_rollouts_come_late() -> None:
    tree, events = grown(POLICIES["sampled"], Oracle(at_a_time=2), wait=False, capacity=3)
    assert 0 < len(rollouts_in(events)) < len(tree.nodes)


def test_a_surrogate_that_never_answers_changes_nothing_where_nobody_waits() -> None:
    policy, oracle = POLICIES["sampled"], Oracle(at_a_time=0)
    tree, events = grown(policy, oracle, wait=False)
    tree_search, _ = begun(policy)
    without = search_for(tree_search, Oracle(at_a_time=0), wait=False)
    without.rollouts = None
    without.run((0,))
    assert not rollouts_in(events)
    line = 1 + policy.rollout_depth
    assert oracle.most_waiting < 2 * oracle.capacity + line, "questions don't pile up"
    assert identities(tree) == identities(tree_search.tree)


@pytest.mark.parametrize("stops", ["budget", "interrupt"])
def test_the_wait_for_prices_ends_with_the_search(stops: str) -> None:
    answers = Oracle()
    tree_search, journal = begun(POLICIES["sampled"])
    search_for(tree_search, answers, evaluations=5).run((0,))
    oracle = Silent()
    ends: dict[str, dict[str, Any]] = {
        "budget": {"seconds": 60.0, "clock": oracle.clock},
        "interrupt": {"stop_requested": _after_a_while(oracle.clock)},
    }
    before = len(journal.events)
    search = search_for(tree_search, oracle, **ends[stops])
    assert search.run(()) is (Ending.BUDGET if stops == "budget" else Ending.INTERRUPTED)
    assert oracle.asked
    assert len(journal.events) == before


def _after_a_while(clock: Clock) -> Callable[[], bool]:
    return lambda: clock.now > 5.0
