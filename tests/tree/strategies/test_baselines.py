"""Strategies on games so small that what they do next can be worked out by hand."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from mctskernel.core.edit import Category, Edit, Factor, WholeSource
from mctskernel.core.evaluation import Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import Proposals
from mctskernel.tree.search import Exhausted, Try
from mctskernel.tree.strategies import STRATEGIES
from mctskernel.tree.strategies.strategy import Propose, Step

THREE_LEVELS = {"root": "abc", "a": ["aa", "ab"], "b": ["ba", "bb"], "c": ["ca", "cb"]}
"""What each kernel's edits make, in their order."""

REWARDS = {"a": -1.0, "b": 3.0, "c": -0.5, "aa": 4.0, "ab": 0.0, "ba": 2.5, "bb": 1.0, "ca": 5.0, "cb": 1.0}

Game = Mapping[str, Sequence[str]]


@pytest.fixture
def play(tell: Any) -> Callable[..., str]:
    """The kernels that a strategy tries in a game, in order, until nothing is left; `budget` of them at the most."""

    def play(
        strategy: str, game: Game, rewards: Mapping[str, float], budget: int | None = None, **policy: Any
    ) -> str:
        story, tried = tell(strategy=strategy, **policy), list[str]()
        story.evaluate(0, 0.0)
        while len(tried) != budget and not isinstance(request := story.search.ask(), Exhausted):
            if isinstance(request, Propose):
                story.propose(*game.get(story.search.kernel(request.node).source, ()))
                continue
            attempt, node = story.submit()
            if node is not None:
                tried.append(attempt.edit.title)
                story.evaluate(node, rewards[attempt.edit.title])
        return " ".join(tried)

    return play


def test_best_of_n_edits_the_root_alone(play: Any) -> None:
    assert play("best-of-n", THREE_LEVELS, REWARDS) == "a b c"


def test_best_of_n_asks_for_more_as_long_as_it_is_given_any(tell: Any) -> None:
    story = tell(strategy="best-of-n")
    story.evaluate(0, 0.0)
    for number in range(3):
        assert story.propose(f"{number}") == 0
        story.try_next(1.0)
    assert story.propose() == 0
    assert story.is_exhausted()


def test_greedy_leaves_a_kernel_for_the_first_better_one(play: Any) -> None:
    # b is better than the root, ba is not better than b; then the root, the best that is left.
    assert play("greedy", THREE_LEVELS, REWARDS) == "a b ba bb c ca cb aa ab"


def test_greedy_goes_on_while_the_best_awaits_a_reply(tell: Any) -> None:
    story = tell(strategy="greedy")
    story.evaluate(0, 0.0)
    story.propose("a", "b")
    story.try_next(1.0)
    request = story.search.ask()
    assert request == Propose((0, 1))
    story.search.asked(request)
    assert story.next_try().edit.title == "b"
    story.propose_to(request, "aa")
    assert story.next_try().edit.title == "aa"


def test_greedy_goes_on_while_evaluations_are_in_flight(tell: Any) -> None:
    story = tell(strategy="greedy")
    story.evaluate(0, 0.0)
    story.propose("a", "b", "c")
    _, a = story.submit()
    assert story.submit()[0].edit.title == "b"
    story.evaluate(a, 1.0)
    assert story.search.ask() == Propose((0, a))


def test_greedy_mends_a_failure_only_when_nothing_that_works_is_left(tell: Any) -> None:
    story = tell(strategy="greedy")
    story.evaluate(0, 0.0)
    story.propose("a", "b")
    story.try_next(-1.5, Outcome.BUILD_ERROR)
    assert story.try_next(-0.9) == 2
    assert story.propose() == 0
    assert story.propose() == 2
    assert story.propose("mended") == 1


def test_beam_goes_down_by_its_best_and_comes_back_wider(play: Any) -> None:
    # Two of a width, two edits of each: b before a. The third edit of the root is for the second pass.
    assert play("beam", THREE_LEVELS, REWARDS, beam_width=2, beam_edits=2) == "a b ba bb aa ab c ca cb"
    # One of a width: a, the third of its level, is for the third pass.
    assert play("beam", THREE_LEVELS, REWARDS, beam_width=1, beam_edits=2) == "a b ba bb c ca cb aa ab"
    # One edit of each: the second pass has two of a width with two edits, the third three.
    assert play("beam", THREE_LEVELS, REWARDS, beam_width=1, beam_edits=1) == "a aa b ba bb ab c ca cb"


def test_beam_waits_for_the_rest_of_a_generation(tell: Any) -> None:
    story = tell(strategy="beam", beam_width=1, beam_edits=2)
    story.evaluate(0, 0.0)
    story.propose("a", "b", "c")
    _, first = story.submit()
    _, second = story.submit()
    story.evaluate(first, 1.0)
    assert story.must_wait()
    story.evaluate(second, 2.0)
    assert story.search.ask() == Propose((0, second))
    story.search.asked(Propose((0, second)))
    assert story.must_wait()


def test_beam_waits_for_a_member_that_awaits_edits(tell: Any) -> None:
    story = tell(strategy="beam", beam_width=2, beam_edits=2)
    story.evaluate(0, 0.0)
    story.propose("a", "b")
    a = story.try_next(1.0)
    b = story.try_next(2.0)
    assert story.propose("ba", "bb") == b
    story.try_next(3.0)
    story.try_next(3.0)
    request = story.search.ask()
    assert request == Propose((0, a))
    story.search.asked(request)
    assert story.must_wait()
    story.propose_to(request)
    assert story.search.ask() == Propose((0, b, 3))


def test_a_beam_takes_the_first_of_equals(play: Any) -> None:
    game = {"root": "ab", "a": ["aa"], "b": ["ba"]}
    rewards = {"a": 1.0, "b": 1.0, "aa": 0.0, "ba": 0.0}
    assert play("beam", game, rewards, beam_width=1, beam_edits=2) == "a b aa ba"


def test_an_edit_that_makes_a_known_kernel_is_none_of_a_beams(play: Any) -> None:
    game = {"root": ["a", "b"], "a": ["root", "b", "aa", "ab"]}
    rewards = {"a": 1.0, "b": 0.0, "aa": 0.0, "ab": 0.0}
    assert play("beam", game, rewards, budget=3, beam_width=1, beam_edits=1) == "a b aa"


def test_annealing_at_zero_climbs(tell: Any) -> None:
    story = tell(strategy="annealing", annealing_temperature=0.0)
    story.evaluate(0, 0.0)
    story.propose(*(f"{number}" for number in range(9)))
    for _ in range(4):
        assert story.next_try().path == (0,)
        story.try_next(-0.01)
    better = story.try_next(0.01)
    assert story.search.ask() == Propose((0, better))


def test_annealing_accepts_losses_by_metropolis(tell: Any) -> None:
    """A walk that accepted the first loss asks it for edits; so does one that goes to it as to a known kernel."""
    temperature, loss, edits, runs = 0.2, 0.1, 9, 600
    accepted = math.exp(-loss / temperature)
    known_drawn = accepted / (edits - 1 + accepted)
    expected = accepted + (1 - accepted) * known_drawn
    count = 0
    for seed in range(runs):
        story = tell(strategy="annealing", annealing_temperature=temperature, annealing_cooling=1.0)
        story.tree.seed = seed
        story.evaluate(0, 0.0)
        story.propose(*(f"{number}" for number in range(edits)))
        story.try_next(-loss)
        count += isinstance(story.search.ask(), Propose)
    assert count / runs == pytest.approx(expected, abs=3 * math.sqrt(expected * (1 - expected) / runs))


def test_annealing_cools_and_begins_again(tell: Any) -> None:
    # Cold but for the root's evaluation, the first of three, and every third after it.
    story = tell(strategy="annealing", annealing_temperature=1e9, annealing_cooling=0.0, annealing_period=3)
    story.evaluate(0, 0.0)
    story.propose(*(f"{number}" for number in range(9)))
    for _ in range(2):
        story.try_next(-1.0)
        assert isinstance(story.search.ask(), Try)
    third = story.try_next(-1.0)
    assert story.search.ask() == Propose((0, third))


def test_annealing_walks_take_turns(tell: Any) -> None:
    story = tell(strategy="annealing", annealing_walkers=2, annealing_temperature=0.0)
    story.evaluate(0, 0.0)
    story.propose(*(f"{number}" for number in range(2000)))
    first = story.try_next(1.0)
    second = story.try_next(-1.0)
    assert story.search.ask() == Propose((0, first))
    story.propose("up")
    assert story.try_next(2.0) == second + 1
    assert story.next_try().path == (0,)


def test_a_walk_among_known_kernels_finds_the_edit_that_waits(tell: Any) -> None:
    story = tell(strategy="annealing", annealing_temperature=0.0)
    story.evaluate(0, 0.0)
    story.propose(*(f"{number}" for number in range(200)))
    for _ in range(199):
        story.try_next(-1.0)
    assert story.next_try().path == (0,)


def draws(story: Any, name: str, count: int = 3000) -> Counter[Step | Propose]:
    """How often a strategy takes which step, by its draws alone."""
    strategy = STRATEGIES[name]()
    steps = (strategy.steps(story.tree, 1, lambda n=n: np.random.default_rng(n))[0] for n in range(count))
    return Counter(steps)


def assert_shares(found: Counter[Any], expected: Mapping[Any, float]) -> None:
    count = found.total()
    assert set(found) == set(expected)
    for each, share in expected.items():
        assert found[each] / count == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / count)), (
            each
        )


def test_random_draws_a_node_and_then_an_edit(tell: Any) -> None:
    story = tell(strategy="random")
    story.evaluate(0, 0.0)
    story.propose("a", "b", "c")
    a = story.try_next(5.0)
    story.search.proposed(Propose((0, a)), Proposals((edit("aa"),)))
    left = story.tree.nodes[0].untried
    assert_shares(
        draws(story, "random"),
        {Step((0, a), 0): 1 / 2, Step((0,), left[0]): 1 / 4, Step((0,), left[1]): 1 / 4},
    )


def edit(
    source: str, category: Category = Category.TUNING, factors: Mapping[str, float] | None = None
) -> Edit:
    decided = tuple(Factor(name, level) for name, level in (factors or {}).items())
    return Edit(category, source, WholeSource(source), factors=decided)


def make(story: Any, parent: int, made: Edit, reward: float) -> int:
    """A child, whatever the strategy would do."""
    path = tuple(story.tree.lineage(parent))
    story.search.proposed(Propose(path), Proposals((made,)))
    number = len(story.tree.nodes[parent].edits) - 1
    node = story.search.submit(Try(path, number, made), Kernel(made.title))
    story.evaluate(node, reward)
    return node


def offer(story: Any, node: int, *edits: Edit) -> None:
    story.search.proposed(Propose(tuple(story.tree.lineage(node))), Proposals(edits))


def test_parents_are_the_elites_of_their_kinds(tell: Any) -> None:
    story = tell(strategy="genetic", genetic_crossover=0.0)
    story.evaluate(0, 0.0)
    make(story, 0, edit("a", Category.TUNING), 1.0)
    b = make(story, 0, edit("b", Category.TUNING), 2.0)
    c = make(story, 0, edit("c", Category.UNROLLING), -0.5)
    make(story, b, edit("bb", Category.TUNING), 1.5)
    cb = make(story, c, edit("cb", Category.TUNING), -1.0)
    for node in range(len(story.tree.nodes)):
        offer(story, node, edit(f"{node} x"), edit(f"{node} y"))
    found = draws(story, "genetic")
    # a and bb were outdone by b, with which they share what was decided.
    parents = Counter(
        {node: sum(found[step] for step in found if step.node == node) for node in (0, b, c, cb)}
    )
    assert_shares(parents, dict.fromkeys((0, b, c, cb), 1 / 4))
    assert parents.total() == found.total()
    assert len([step for step in found if step.node == b]) == 2


def test_a_crossover_decides_as_another_elite_did(tell: Any) -> None:
    story = tell(strategy="genetic", genetic_crossover=1.0)
    story.evaluate(0, 0.0)
    x = make(story, 0, edit("x", factors={"X": 2}), 1.0)
    y = make(story, 0, edit("y", factors={"Y": 2}), 1.0)
    offer(story, x, edit("x1", factors={"Y": 3}), edit("x2", factors={"Y": 2}), edit("x3", factors={"Z": 1}))
    story.search.asked(Propose((0,)))
    story.search.asked(Propose((0, y)))
    # x alone is ready. Of the other elites, which are the root and y, y alone decided Y = 2; else it's any edit.
    assert_shares(
        draws(story, "genetic"), {Step((0, x), 1): 2 / 3, Step((0, x), 0): 1 / 6, Step((0, x), 2): 1 / 6}
    )


def test_an_epsilon_net_refines_one_of_the_kernels_that_are_as_fast(play: Any) -> None:
    game = {"root": "abc", "b": ["bb"], "c": ["cc"]}
    rewards = {"a": 1.0, "b": 1.005, "c": 0.9, "bb": 2.0, "cc": 0.1}
    # b, within a hundredth of a, waits until no member of the net is left.
    assert play("epsilon-net", game, rewards, net_exploration=0.0) == "a b c cc bb"
    assert play("epsilon-net", game, rewards, net_exploration=0.0, net_radius=0.0) == "a b bb c cc"


def test_an_epsilon_net_explores_any_node(tell: Any) -> None:
    story = tell(strategy="epsilon-net", net_exploration=0.3)
    story.evaluate(0, 0.0)
    a = make(story, 0, edit("a"), 1.0)
    b = make(story, 0, edit("b"), 1.0)
    found = draws(story, "epsilon-net")
    assert_shares(found, {Propose((0,)): 0.1, Propose((0, a)): 0.8, Propose((0, b)): 0.1})
