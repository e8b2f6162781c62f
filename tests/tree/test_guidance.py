"""Learnt priors, RAVE, first play, dead ends and restarts: on games small enough to play by hand."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mctskernel.core.edit import Category
from mctskernel.core.evaluation import Outcome
from mctskernel.tree.events import PredictionRecord
from mctskernel.tree.first_play import FIRST_PLAYS
from mctskernel.tree.fold import fold
from mctskernel.tree.guidance import Guidance
from mctskernel.tree.mixing import rave, unmixed
from mctskernel.tree.policy import Policy, PolicyError
from mctskernel.tree.priors import given as given_prior
from mctskernel.tree.priors import learnt
from mctskernel.tree.pruning import DeadEnds
from mctskernel.tree.restarts import Stagnation
from mctskernel.tree.search import TreeSearch, Try
from tests.tree.by_hand import Grown, edit
from tests.tree.test_search import Chaos, policies


def test_learnt_priors_by_hand() -> None:
    weights, expected = np.array([1.0, 2.0, 1.0]), np.array([0.0, 1.0, -1.0])
    policy = Policy(prior_temperature=2.0)
    # exp((expected - 1) / (2 * 0.5))
    found = learnt(weights, expected, 0.5, policy)
    assert found == pytest.approx([math.exp(-1), 2.0, math.exp(-2)])
    assert learnt(weights, 1e3 * expected, 500.0, policy) == pytest.approx(found), "of no unit"
    assert learnt(weights, expected, 0.0, policy).tolist() == weights.tolist()
    assert given_prior(weights, expected, 0.5, policy).tolist() == weights.tolist()
    assert (learnt(weights, 1e9 * expected, 0.5, policy) > 0).all()


def test_rave_gives_an_edits_record_half_the_say_after_as_many_visits_as_its_equivalence() -> None:
    visits = np.array([0, 4, 20])
    # sqrt(4 / (3 n + 4))
    assert rave(visits, Policy(equivalence=4.0)) == pytest.approx([1.0, 0.5, 0.25])
    assert rave(visits, Policy(equivalence=0.0)).tolist() == unmixed(visits, Policy()).tolist() == [0, 0, 0]


def test_first_plays() -> None:
    expected = np.array([0.1, 0.9])
    assert FIRST_PLAYS["parent"](expected, 0.4).tolist() == [0.4, 0.4]
    assert FIRST_PLAYS["estimate"](expected, 0.4).tolist() == [0.1, 0.9]


def learning(**policy: Any) -> Grown:
    """At the root "a" gained 1 and "b" lost 1; node 1 is offered "b" with the greater weight, then "a"."""
    grown = Grown(widening="unlimited", **policy)
    grown.offer(0, edit("a"), edit("b"))
    grown.make(0, 0, 1.0)
    grown.make(0, 1, -1.0)
    grown.offer(0)
    grown.offer(1, edit("b", prior=1.5), edit("a"))
    return grown


@pytest.mark.parametrize(("prior", "first"), [("given", "b"), ("learnt", "a")])
def test_what_gained_elsewhere_is_tried_first(prior: str, first: str) -> None:
    attempt = learning(prior=prior).search.ask()
    assert isinstance(attempt, Try)
    assert (attempt.node, attempt.edit.title) == (1, first)


def test_learnt_weights_are_drawn_from() -> None:
    # Gains 1 and -1 shrunk by 2 tries: a (1 + 0) / 3, b -1 / 3; spread 1: odds of exp(2 / 3 / 0.05) to 1.5.
    grown = learning(prior="learnt", order="sampled", prior_temperature=0.05)
    for _ in range(20):
        attempt = grown.search.ask()
        assert isinstance(attempt, Try)
        assert attempt.edit.title == "a"
        grown.offer(2)  # nothing but one more event, so another draw


def drawing(**policy: Any) -> Grown:
    """The root is offered twenty edits of which nothing is known; after each of two is a node."""
    grown = Grown(prior="thompson", widening="unlimited", **policy)
    grown.offer(0, *(edit(f"{number}") for number in range(20)))
    return grown


def next_edit(search: TreeSearch) -> str:
    attempt = search.ask()
    assert isinstance(attempt, Try)
    return attempt.edit.title


def test_untried_edits_are_drawn_anew_for_each_kernel_and_for_nothing_else() -> None:
    grown, found = drawing(), []
    for number in range(12):
        found.append(next_edit(grown.search))
        grown.search.predicted(0, number, PredictionRecord(1.0))
        assert next_edit(grown.search) == found[-1], "whose edits are predicted meanwhile"
        replayed = TreeSearch(fold(grown.journal.events), grown.journal, grown.blobs)
        assert next_edit(replayed) == found[-1]
        # In flight: no two of them the same.
        grown.begin(0, int(found[-1]))
    assert len(set(found)) == 12
    assert found != sorted(found, key=int)


def test_what_proposers_and_trials_favour_is_drawn_more_often() -> None:
    first = []
    for seed in range(60):
        grown = Grown(prior="thompson", widening="unlimited", prior_temperature=1.0, seed=seed)
        grown.offer(0, edit("tried"), edit("untried"), edit("favoured", prior=1e4))
        first.append(next_edit(grown.search))
    assert first.count("favoured") > 55
    for good, often in ((True, True), (False, False)):
        chosen = 0
        for seed in range(60):
            grown = Grown(prior="thompson", seed=seed)
            grown.offer(0, *(edit("a") for _ in range(5)))
            for number in range(5):
                grown.make(0, number, 1.0 if good else -1.0)
            grown.offer(5, edit("a"), edit("b"))
            grown.offer(0, edit("a"), edit("b"))
            weights = Guidance(grown.tree.policy)
            weights.follow(grown.tree)
            found = weights.weights(grown.tree, grown.node(0), [5, 6])
            chosen += int(found[0] > found[1])
        assert (chosen > 40) is often


def test_the_way_to_a_node_is_drawn_too() -> None:
    ways = set()
    for seed in range(20):
        grown = Grown(
            selection="puct",
            exploration=2.0,
            widening="fixed",
            widening_factor=2,
            prior="thompson",
            seed=seed,
        )
        grown.offer(0, edit("a"), edit("b"))
        grown.make(0, 0, 0.2)
        grown.make(0, 1, 0.2)
        grown.offer(1, edit("c"))
        grown.offer(2, edit("c"))
        ways.add(grown.path())
        assert grown.path() == grown.path(), "asked twice, it says the same"
    assert ways == {(0, 1), (0, 2)}


def test_learnt_priors_follow_what_happens_elsewhere() -> None:
    grown = Grown(selection="puct", exploration=100.0, widening="fixed", widening_factor=2, prior="learnt")
    grown.offer(0, edit("a"), edit("b"))
    grown.make(0, 0, 0.1)
    grown.make(0, 1, 0.0)
    grown.offer(1, edit("b"))
    assert grown.path() == (0, 1), "as often visited, and the better edit"
    grown.make(1, 0, 1.1)
    assert grown.path()[:2] == (0, 2), "since then, the worse edit"


def test_learnt_priors_are_of_the_children_that_are_open() -> None:
    grown = Grown(selection="puct", widening="fixed", widening_factor=3, prior="learnt")
    grown.grow(0, 0.3, 0.2, 0.1)
    assert grown.path() == (0, 1)
    grown.offer(1)
    assert grown.path() == (0, 2)


def rivals(**policy: Any) -> Grown:
    """Node 1 ("a", 0.5) and node 2 ("b", 0.6), made by the second and the third edit, which were tried below node 1."""
    grown = Grown(selection="greedy", widening="fixed", widening_factor=2, shrinkage=1e-9, **policy)
    grown.offer(0, edit("never"), edit("a"), edit("b"))
    grown.make(0, 1, 0.5)
    grown.make(0, 2, 0.6)
    grown.offer(1, edit("a"), edit("b"), edit("more"))
    grown.offer(2, edit("more"))
    # a gained 0.5 and then 1.5: its mean is 1. b gained 0.6 and lost 2.1: -0.75.
    grown.make(1, 0, 2.0)
    grown.make(1, 1, -1.6)
    return grown


def test_rave_mixes_what_an_edit_did_elsewhere_into_its_childs_worth() -> None:
    # By mean, node 1 is worth (0.5 + 2 - 1.6) / 3 = 0.3 after 3 visits, node 2 0.6 after 1.
    assert rivals(value="mean").path()[:2] == (0, 2)
    # k = 3 gives RAVE half of it at n = 3: (0.3 + 1) / 2 = 0.65, and sqrt(3 / 6) = 0.71 at n = 1: 0.71 * -0.75 + 0.18.
    assert rivals(value="mean", mixing="rave", equivalence=3.0).path()[:2] == (0, 1)
    # As good as no say.
    assert rivals(value="mean", mixing="rave", equivalence=1e-9).path()[:2] == (0, 2)


def first_player(reward: float, **policy: Any) -> Grown:
    """The root got 0.5; its child got `reward`, by "a", and an edit "a" waits at the root, at any time."""
    grown = Grown(reward=0.5, widening="unlimited", selection="greedy", shrinkage=1e-9, **policy)
    grown.offer(0, edit("a"), edit("a"))
    grown.make(0, 0, reward)
    return grown


@pytest.mark.parametrize(
    ("first_play", "reward", "path"),
    [
        ("none", 0.9, (0,)),
        ("parent", 0.4, (0,)),
        ("parent", 0.9, (0, 1)),
    ],
)
def test_an_untried_edit_waits_for_a_child_that_is_worth_more(
    first_play: str, reward: float, path: tuple[int, ...]
) -> None:
    assert first_player(reward, first_play=first_play).path() == path


@pytest.mark.parametrize(("gain", "goes_below"), [(0.1, True), (0.5, False)])
def test_an_untried_edit_is_worth_what_such_edits_gained(*, gain: float, goes_below: bool) -> None:
    grown = Grown(
        reward=0.5,
        widening="unlimited",
        selection="greedy",
        value="mean",
        first_play="estimate",
        shrinkage=1e-9,
    )
    grown.offer(0, edit("a"), edit("f", Category.FUSION))
    grown.make(0, 0, 0.6)
    grown.offer(1, edit("f", Category.FUSION))
    grown.make(1, 0, 0.6 + gain)
    # Node 1 is worth 0.6 + gain / 2, "f" at the root 0.5 + gain.
    assert (grown.path()[:2] == (0, 1)) == goes_below


def test_subtrees_that_gained_nothing_are_passed_over_until_nothing_else_is_left() -> None:
    policy = {"selection": "greedy", "widening": "fixed", "widening_factor": 2, "dead_end_visits": 3}
    plain, pruned = Grown(**policy), Grown(**policy, pruning="dead-ends")
    for grown in (plain, pruned):
        best, other = grown.grow(0, 0.5, 0.4)
        first = grown.grow(best, 0.45, 0.3)[0]
        grown.grow(first, 0.2, 0.1)
        # Below the best one, 0.45 and three visits gained nothing over it; itself it gained on the root.
        assert grown.path()[:2] == (0, best)
        assert grown.path()[:3] == ((0, best, first) if grown is plain else (0, best, first + 1))
    # And now there is nothing but dead ends below the best: it is expanded beyond its two children.
    pruned.grow(first + 1, 0.2, 0.1)
    assert pruned.path() == (0, best)
    # Once the best can't be expanded either, what else there is comes next; its dead ends come back at the end.
    pruned.offer(best)
    assert pruned.path()[:2] == (0, other)
    for node in (other, 0):
        pruned.offer(node)
    assert pruned.path()[:3] in {(0, best, first), (0, best, first + 1)}


def test_a_dead_end_is_worth_no_more_than_its_parent() -> None:
    grown, dead_ends = Grown(reward=0.5, dead_end_visits=2), DeadEnds()
    children = grown.grow(0, 0.4, 0.5, 0.6, 0.3)
    for child in children[:3]:
        grown.grow(child, 0.1)
    dead_ends.follow(grown.tree)
    # The last one was visited once.
    closed = dead_ends.closed(grown.tree, grown.node(0), np.array(children))
    assert closed.tolist() == [True, True, False, False]


def test_subtrees_that_only_failed_are_passed_over() -> None:
    grown = Grown(
        selection="greedy",
        widening="fixed",
        widening_factor=2,
        repair_depth=5,
        pruning="dead-ends",
        dead_end_failures=3,
    )
    failed, bad = grown.grow(0, -0.1, outcome=Outcome.BUILD_ERROR)[0], grown.grow(0, -1.0)[0]
    assert grown.path()[:2] == (0, failed), "greedy goes by the reward alone"
    grown.grow(failed, -0.2, outcome=Outcome.BUILD_ERROR)
    assert grown.path()[:2] == (0, failed), "twice is not yet a dead end"
    grown.grow(failed, -0.2, outcome=Outcome.BUILD_ERROR)
    assert grown.path()[:2] == (0, bad)


def test_one_mended_kernel_keeps_a_failed_one_open() -> None:
    grown = Grown(
        selection="greedy", widening="fixed", widening_factor=1, repair_depth=5, pruning="dead-ends"
    )
    failed = grown.grow(0, -0.1, outcome=Outcome.BUILD_ERROR)[0]
    grown.grow(failed, -0.5)
    grown.grow(failed, -0.2, -0.2, outcome=Outcome.BUILD_ERROR)
    assert grown.path()[:2] == (0, failed)


@pytest.mark.parametrize(
    ("rewards", "restarting"),
    [
        ((0.1, 0.0, 0.0), False),
        ((0.1, 0.0, 0.0, 0.0), True),
        ((0.1, 0.0, 0.0, 0.0, 0.1), True),  # as good is no better
        ((0.1, 0.0, 0.0, 0.0, 0.2), False),
        ((0.1, 0.0, 0.0, 0.0, 0.0, 0.0), False),  # two evaluations long
        ((0.1, *[0.0] * 7), False),
        ((0.1, *[0.0] * 8), True),  # and three further ones from its end
    ],
)
def test_a_restart_begins_with_stagnation_and_ends(rewards: tuple[float, ...], *, restarting: bool) -> None:
    grown, found = Grown(stagnation=3, restart_length=2), Stagnation()
    for node, reward in enumerate(rewards):
        grown.grow(node, reward)
    found.follow(grown.tree)
    assert found.is_restarting(grown.tree) is restarting


def stagnating(restart: str) -> Grown:
    """Twice nothing better was found than node 3, below node 2; node 1 was visited once."""
    grown = Grown(
        selection="puct", exploration=0.01, widening="fixed", widening_factor=2, stagnation=2, restart=restart
    )
    grown.grow(0, 0.1, 0.5)
    grown.grow(2, 0.9)
    grown.grow(3, 0.2, 0.3)
    return grown


@pytest.mark.parametrize(("restart", "child"), [("none", 2), ("elsewhere", 1), ("blind", 1)])
def test_a_restart_leads_away_from_the_best(restart: str, child: int) -> None:
    grown = stagnating(restart)
    assert grown.path()[1] == child
    grown.grow(1, 1.0)
    assert grown.path()[1] == 1, "which is the best from now on"


def test_a_restart_with_nowhere_to_go_goes_on() -> None:
    grown = Grown(stagnation=1, restart="elsewhere", widening="fixed", widening_factor=1)
    grown.grow(0, 0.5)
    grown.grow(1, 0.1)
    grown.offer(0)
    assert grown.path()[:2] == (0, 1)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"shrinkage": 0.0}, "above 0"),
        ({"prior_temperature": 0.0}, "above 0"),
        ({"equivalence": -1.0}, "0 or more"),
        ({"dead_end_visits": 0}, "1 or more"),
        ({"dead_end_failures": 0}, "1 or more"),
        ({"stagnation": 0}, "1 or more"),
        ({"restart_length": 0}, "1 or more"),
    ],
)
def test_numbers_out_of_range_are_a_sentence(setting: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PolicyError, match=sentence):
        Policy(**setting)


guided = st.builds(
    lambda policy, strategy, **numbers: Policy(
        **{field: getattr(policy, field) for field in policy.__struct_fields__}
        | {"strategy": strategy}
        | numbers
    ),
    policies,
    st.just("mcts"),
    dead_end_visits=st.integers(1, 4),
    dead_end_failures=st.integers(1, 2),
    stagnation=st.integers(1, 5),
    restart_length=st.integers(1, 5),
)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000), policy=guided, workers=st.integers(1, 4), kernels=st.sampled_from([6, 1000])
)
def test_what_guides_a_walk_is_the_same_in_a_search_that_goes_on_and_in_one_that_is_replayed(
    seed: int, policy: Policy, workers: int, kernels: int
) -> None:
    chaos = Chaos(random.Random(seed), policy, workers, kernels)  # noqa: S311
    for step in range(60):
        if not chaos.step():
            break
        if step % 6 == 0:
            replayed = type(chaos.search)(fold(chaos.journal.events), chaos.journal, chaos.blobs)
            assert replayed.ask() == chaos.search.ask()
