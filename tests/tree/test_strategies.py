"""Strategies on games so small that what they do next can be worked out by hand."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from mctskernel.core.edit import Category
from mctskernel.core.evaluation import Outcome
from mctskernel.tree.choices import open_strategy
from mctskernel.tree.strategies.strategy import Propose, Step
from tests.tree.grown import Grown, edit

THREE_LEVELS = {"root": "abc", "a": ["aa", "ab"], "b": ["ba", "bb"], "c": ["ca", "cb"]}
"""What each kernel's edits make, in their order."""

REWARDS = {"a": -1.0, "b": 3.0, "c": -0.5, "aa": 4.0, "ab": 0.0, "ba": 2.5, "bb": 1.0, "ca": 5.0, "cb": 1.0}


def play(
    strategy: str,
    game: Mapping[str, Sequence[str]],
    rewards: Mapping[str, float],
    budget: int | None = None,
    **policy: Any,
) -> str:
    """The kernels that a strategy tries in a game, in order, until nothing is left; at most `budget`."""
    grown, tried = Grown(strategy=strategy, **policy), list[str]()
    while len(tried) != budget and (action := grown.search.next_action()) is not None:
        if isinstance(action, Propose):
            grown.propose(*game.get(grown.search.kernel(action.node).source, ()))
            continue
        edit, node = grown.submit()
        if node is not None:
            tried.append(edit.title)
            grown.evaluate(node, rewards[edit.title])
    return " ".join(tried)


@pytest.mark.parametrize(
    ("strategy", "policy", "expected"),
    [
        ("best-of-n", {}, "a b c"),
        # b is better than the root, ba is not better than b; then the root, the best that is left.
        ("greedy", {}, "a b ba bb c ca cb aa ab"),
        # Two of a width, two edits of each: b before a. The third edit of the root is for the second pass.
        ("beam", {"width": 2, "edits": 2}, "a b ba bb aa ab c ca cb"),
        # One of a width: a, the third of its level, is for the third pass.
        ("beam", {"width": 1, "edits": 2}, "a b ba bb c ca cb aa ab"),
        ("beam", {"width": 1, "edits": 1}, "a aa b ba bb ab c ca cb"),
    ],
)
def test_the_order_of_a_whole_game(strategy: str, policy: dict[str, int], expected: str) -> None:
    assert play(strategy, THREE_LEVELS, REWARDS, **policy) == expected


def test_an_epsilon_net_refines_one_of_the_kernels_that_are_as_fast() -> None:
    game = {"root": "abc", "b": ["bb"], "c": ["cc"]}
    rewards = {"a": 1.0, "b": 1.005, "c": 0.9, "bb": 2.0, "cc": 0.1}
    # b, within a hundredth of a, waits until no member of the net is left.
    assert play("epsilon-net", game, rewards, exploration=0.0) == "a b c cc bb"
    assert play("epsilon-net", game, rewards, exploration=0.0, radius=0.0) == "a b bb c cc"


def test_best_of_n_asks_for_more_as_long_as_there_are_any() -> None:
    grown = Grown(strategy="best-of-n")
    for number in range(3):
        assert grown.propose(f"{number}") == 0
        grown.try_next(1.0)
    assert grown.propose() == 0
    assert grown.search.next_action() is None


def test_greedy_goes_on_while_the_best_waits_for_a_reply() -> None:
    grown = Grown(strategy="greedy")
    grown.propose("a", "b", "c")
    grown.try_next(1.0)
    assert grown.search.next_action() == Propose(1)
    grown.search.request(1)
    assert grown.submit()[0].title == "b"
    grown.offer_sources(1, "aa")
    assert grown.next_edit()[1].title == "aa"


def test_greedy_repairs_a_failure_only_when_nothing_that_works_is_left() -> None:
    grown = Grown(strategy="greedy")
    grown.propose("a", "b")
    grown.try_next(-1.5, Outcome.BUILD_ERROR)
    assert grown.try_next(-0.9) == 2
    assert (grown.propose(), grown.propose(), grown.propose("repaired")) == (0, 2, 1)


def test_beam_waits_for_the_rest_of_a_generation() -> None:
    grown = Grown(strategy="beam", width=1, edits=2)
    grown.propose("a", "b", "c")
    (_, first), (_, second) = grown.submit(), grown.submit()
    assert first
    assert second
    grown.evaluate(first, 1.0)
    assert grown.search.next_action() is None
    grown.evaluate(second, 2.0)
    assert grown.search.next_action() == Propose(second)
    grown.search.request(second)
    assert grown.search.next_action() is None


def test_a_beam_takes_the_first_of_equals_and_counts_no_duplicates() -> None:
    rewards = {"a": 1.0, "b": 1.0, "aa": 0.0, "ba": 0.0}
    game = {"root": "ab", "a": ["aa"], "b": ["ba"]}
    assert play("beam", game, rewards, width=1, edits=2) == "a b aa ba"
    again = {"root": "a", "a": ["root", "aa"], "aa": ["ba"]}
    assert play("beam", again, rewards, width=1, edits=1) == "a aa ba"


def test_annealing_at_zero_climbs() -> None:
    grown = Grown(strategy="annealing", temperature=0.0)
    grown.propose(*(f"{number}" for number in range(9)))
    for _ in range(4):
        assert grown.next_edit()[0].node == 0
        grown.try_next(-0.01)
    better = grown.try_next(0.01)
    assert grown.search.next_action() == Propose(better)


def test_annealing_accepts_losses_by_metropolis() -> None:
    """A walk that accepted the first loss asks it for edits; so does one that moves to it as a known kernel."""
    temperature, loss, edits, runs = 0.2, 0.1, 9, 300
    accepted = math.exp(-loss / temperature)
    expected = accepted + (1 - accepted) * accepted / (edits - 1 + accepted)
    count = 0
    for seed in range(runs):
        grown = Grown(strategy="annealing", temperature=temperature, cooling=1.0, seed=seed)
        grown.propose(*(f"{number}" for number in range(edits)))
        grown.try_next(-loss)
        count += isinstance(grown.search.next_action(), Propose)
    assert count / runs == pytest.approx(expected, abs=3 * math.sqrt(expected * (1 - expected) / runs))


def test_annealing_cools_and_is_heated_again() -> None:
    # Cold but for the root's evaluation, the first of three, and every third after it.
    grown = Grown(strategy="annealing", temperature=1e9, cooling=0.0, period=3)
    grown.propose(*(f"{number}" for number in range(9)))
    for _ in range(2):
        grown.try_next(-1.0)
        assert isinstance(grown.search.next_action(), Step)
    third = grown.try_next(-1.0)
    assert grown.search.next_action() == Propose(third)


def shares(grown: Grown, count: int = 2000) -> dict[Step | Propose | None, float]:
    """How often a strategy takes which step, by its draws alone."""
    strategy = open_strategy(grown.tree.policy)
    found = Counter(strategy.step(grown.tree, lambda n=n: np.random.default_rng(n)) for n in range(count))
    return {step: number / count for step, number in found.items()}


def make(grown: Grown, parent: int, category: Category, reward: float, **levels: float) -> int:
    grown.offer(parent, edit("title", category, **levels))
    return grown.make(parent, len(grown.node(parent).edits) - 1, reward)


def test_random_draws_a_node_and_then_an_edit() -> None:
    grown = Grown(strategy="random")
    grown.propose("a", "b", "c")
    a = grown.try_next(5.0)
    grown.offer(a, edit("aa"))
    one, other = grown.node(0).untried
    expected = {Step(a, 0): 1 / 2, Step(0, one): 1 / 4, Step(0, other): 1 / 4}
    assert shares(grown) == pytest.approx(expected, abs=0.05)


def test_parents_of_the_evolutionary_search_are_the_elites_of_their_kinds() -> None:
    grown = Grown(strategy="evolutionary", crossover=0.0)
    make(grown, 0, Category.TUNING, 1.0)
    b = make(grown, 0, Category.TUNING, 2.0)
    c = make(grown, 0, Category.UNROLLING, -0.5)
    make(grown, b, Category.TUNING, 1.5)
    cb = make(grown, c, Category.TUNING, -1.0)
    for node in range(len(grown.tree.nodes)):
        grown.offer(node, edit("x"))
    found = shares(grown)
    # The others were outdone by b, with which they share what was decided.
    by_parent = {step.node: share for step, share in found.items() if step is not None}
    assert by_parent == pytest.approx(dict.fromkeys((0, b, c, cb), 1 / 4), abs=0.05)


def test_a_crossover_decides_as_another_elite_did() -> None:
    grown = Grown(strategy="evolutionary", crossover=1.0)
    x, y = make(grown, 0, Category.TUNING, 1.0, X=2), make(grown, 0, Category.TUNING, 1.0, Y=2)
    grown.offer(x, edit(Y=3), edit(Y=2), edit(Z=1))
    grown.search.request(0)
    grown.search.request(y)
    # Only x is ready. Of the other elites, the root and y, only y decided Y = 2; else it's any edit.
    expected = {Step(x, 1): 2 / 3, Step(x, 0): 1 / 6, Step(x, 2): 1 / 6}
    assert shares(grown) == pytest.approx(expected, abs=0.05)
