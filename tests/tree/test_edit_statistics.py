"""What edits did elsewhere, against values worked by hand."""

from __future__ import annotations

import math
import random
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mctskernel.core.edit import Category
from mctskernel.core.evaluation import Outcome
from mctskernel.tree.additive_model import CORRELATED, GUESSED_NOISE, GUESSES, AdditiveModel
from mctskernel.tree.edit_statistics import EditStatistics
from mctskernel.tree.fold import fold
from tests.tree.by_hand import Grown, edit


def titled() -> Grown:
    """Tuning gained 1.0 by "a" and 0.4 by "b", unrolling lost 0.2 by "c"; node 1 is offered five edits."""
    grown = Grown()
    grown.offer(0, edit("a"), edit("b"), edit("c", Category.UNROLLING))
    for number, reward in enumerate((1.0, 0.4, -0.2)):
        grown.make(0, number, reward)
    grown.offer(1, edit("b"), edit("new"), edit("new", Category.FUSION), edit("c", Category.UNROLLING))
    return grown


def test_gains_by_title_borrow_from_their_category_and_from_all() -> None:
    # shrinkage 1; all: 1.2 / (3 + 1) = 0.3; tuning: (1.4 + 0.3) / (2 + 1); unrolling: (-0.2 + 0.3) / 2 = 0.05
    tuning = 1.7 / 3
    # b: (0.4 + tuning) / 2; c: (-0.2 + 0.05) / 2
    expected = [(0.4 + tuning) / 2, tuning, 0.3, -0.075]
    grown = titled()
    assert grown.statistics().gain(grown.tree, grown.node(1)) == pytest.approx(expected)


def test_shrinkage_weighs_what_is_known_of_others() -> None:
    grown = titled()
    own = grown.statistics(shrinkage=1e-9).gain(grown.tree, grown.node(1))
    assert own == pytest.approx([0.4, 0.7, 0.4, -0.2])
    assert grown.statistics(shrinkage=1e9).gain(grown.tree, grown.node(1)) == pytest.approx(
        [0.0] * 4, abs=1e-6
    )


def test_spread_is_the_standard_deviation_of_gains() -> None:
    assert titled().statistics().spread == pytest.approx(float(np.std([1.0, 0.4, -0.2])))
    assert Grown().statistics().spread == 0.0


def test_a_gain_is_over_the_kernel_that_was_edited_and_a_repair_is_none() -> None:
    grown = titled()
    grown.make(1, 0, 1.1)  # "b" again, on top of 1.0: 0.1
    failed = grown.grow(2, -1.5, outcome=Outcome.BUILD_ERROR)[0]
    before = grown.statistics(1e-9).gain(grown.tree, grown.node(1))
    assert before[0] == pytest.approx((0.4 + 0.1) / 2)
    grown.offer(failed, edit("b"))
    grown.make(failed, 0, 5.0)
    assert grown.statistics(1e-9).gain(grown.tree, grown.node(1)).tolist() == before.tolist()


def factored() -> Grown:
    """The root is X = 1. X = 2 got 1; with Y = 5 on top 3; X = 3 in place of X = 2 got 2. Node 1 is offered more."""
    grown = Grown("#define X 1\n")
    grown.offer(0, edit(X=2))
    grown.make(0, 0, 1.0)
    grown.offer(1, edit(Y=5), edit(X=3), edit(X=1), edit("both", X=3, Y=5))
    grown.make(1, 0, 3.0)
    grown.make(1, 1, 2.0)
    return grown


def test_gains_by_factor_whatever_the_title_and_of_several_the_sum() -> None:
    # X: 1 and 1, Y: 2, all: 4 / (3 + 1) = 1; X: (2 + 1) / 3 = 1, its levels 1; Y: 1.5, Y = 5: (2 + 1.5) / 2
    grown = factored()
    assert grown.statistics().gain(grown.tree, grown.node(1)) == pytest.approx([1.75, 1.0, 1.0, 1.0 + 1.75])


def test_a_gain_of_several_decisions_is_nobodys() -> None:
    grown = factored()
    before = grown.statistics().gain(grown.tree, grown.node(1)).tolist()
    grown.make(1, 3, -5.0)
    assert grown.statistics().gain(grown.tree, grown.node(1)).tolist() == before


def test_rewards_are_of_all_kernels_where_a_level_is_in_effect() -> None:
    # X = 1: 0. X = 2: 1, 3. X = 3: 2. Y = 5: 3. All five: mean 1.8.
    # X: (6 + 1.8) / 5 = 1.56; X = 3: (2 + 1.56) / 2; X = 1: (0 + 1.56) / 2.
    # Y: (3 + 1.8) / 2 = 2.4; Y = 5: (3 + 2.4) / 2.
    grown = factored()
    expected = [2.7, 1.78, 0.78, (1.78 + 2.7) / 2]
    assert grown.statistics().reward(grown.tree, grown.node(1)) == pytest.approx(expected)


def test_effects_are_over_what_they_replace() -> None:
    # Variance 1 each. X = 1 saw 0. X = 2 saw 1: 1 / 2, variance 1 / 2. X = 2 with Y = 5 saw 3, expected 1/2, of a
    # variance of 1 + 1/2 + 1: X = 2 is 1/2 + 1/2 * 2.5 / 2.5 = 1, Y = 5 is 1. X = 3 saw 2: 1.
    grown = factored()
    tree, statistics = grown.tree, grown.statistics()
    assert statistics.effect(tree, grown.node(1)) == pytest.approx([1.0, 0.0, -1.0, 1.0])
    grown.offer(2, edit(X=3), edit(Y=5), edit(Y=6))
    assert statistics.effect(tree, grown.node(2)) == pytest.approx([0.0, 0.0, 0.0 - 1.0])


@pytest.mark.parametrize("others", [0, 2 * CORRELATED])
def test_effects_of_a_sum_are_found(others: int) -> None:
    """Whether they are among those whose covariances are kept, or come after them."""
    rng = np.random.default_rng(0)
    truth, model = np.array([0.5, -1.0, 2.0, 0.0, -0.3]), AdditiveModel(variance=100.0)
    for effect in range(others):
        model.observe([-effect], 0.0)
    for _ in range(400):
        present = 1 + np.flatnonzero(rng.random(5) < 0.5)
        model.observe(present.tolist(), truth[present - 1].sum())
    found = dict(zip(model.effects, model.means.tolist(), strict=True))
    assert [found.pop(effect) for effect in (1, 2, 3, 4, 5)] == pytest.approx(truth, abs=0.02)
    assert not any(found.values())


def test_effects_are_those_of_ridge_regression_in_whatever_order_they_are_observed() -> None:
    rng = np.random.default_rng(1)
    present, totals = (rng.random((30, 12)) < 0.4).astype(float), rng.normal(size=30)
    ridge = np.linalg.solve(present.T @ present + np.eye(12) / 0.5, present.T @ totals)
    for order in (range(30), range(29, -1, -1)):
        model = AdditiveModel(variance=0.5)
        for i in order:
            model.observe(np.flatnonzero(present[i]).tolist(), totals[i])
        assert dict(zip(model.effects, model.means, strict=True)) == pytest.approx(dict(enumerate(ridge)))


def test_noise_is_learnt_from_what_sums_are_beside_what_was_expected() -> None:
    model = AdditiveModel(variance=1.0)
    assert model.belief().noise == pytest.approx(GUESSED_NOISE)
    # 3 instead of 0, of a variance of 1 + 1.
    model.observe([1], 3.0)
    squares = GUESSES * GUESSED_NOISE**2 + 9 / 2
    assert model.belief().noise == pytest.approx(math.sqrt(squares / (GUESSES + 1)))


@pytest.mark.parametrize("others", [0, CORRELATED - 2])
def test_effects_are_drawn_by_what_is_believed_of_them(others: int) -> None:
    """Of ridge regression: the two effects that were only seen together are uncertain, and their sum isn't."""
    model = AdditiveModel(variance=2.0)
    for effect in range(others):
        model.observe([-effect - 1], 0.0)
    for _ in range(20):
        model.observe([1, 2], 1.0)
        model.observe([3], -1.0)
    belief, rng = model.belief(), np.random.default_rng(0)
    drawn = np.array([belief.draw(rng) for _ in range(4000)])
    assert drawn.shape == (4000, others + 3)
    found = drawn[:, others:]
    assert found.mean(axis=0) == pytest.approx(model.means[others:], abs=0.05)
    deviations = found.std(axis=0) / belief.noise
    assert deviations[2] == pytest.approx(math.sqrt(2 / 41), rel=0.1)
    if not others:
        assert deviations[:2] == pytest.approx([math.sqrt(2 - 4 * 20 / 81)] * 2, rel=0.1)
        assert (found[:, 0] + found[:, 1]).std() / belief.noise == pytest.approx(math.sqrt(4 / 81), rel=0.1)


def test_drawn_effects_agree_on_what_edits_share_and_centre_on_the_expected() -> None:
    grown = factored()
    grown.offer(2, edit(X=3), edit(Y=6), edit("both", X=3, Y=6), edit(Y=5))
    statistics, node = grown.statistics(), grown.node(2)
    rng, drawn = np.random.default_rng(0), np.zeros((4000, 4))
    for row in drawn:
        statistics.draw(rng)
        row[:] = statistics.drawn_effect(grown.tree, node, rng)
    assert drawn.mean(axis=0) == pytest.approx(statistics.effect(grown.tree, node), abs=0.05)
    assert drawn[:, 2] == pytest.approx(drawn[:, 0] + drawn[:, 1])
    assert drawn[:, 3] == pytest.approx(0.0), "in place of itself"
    assert drawn[:, 1].std() > statistics.noise, "nobody tried Y = 6"


def test_a_kernel_that_failed_counts_as_one_like_the_median() -> None:
    failing, median = factored(), factored()
    for grown, reward, outcome in ((failing, -9.0, Outcome.CRASH), (median, 1.0, Outcome.OK)):
        # 0, 1, 3 and 2 came before.
        grown.offer(0, edit(Z=1))
        grown.make(0, 1, reward, outcome)
        grown.offer(0, edit(Z=1))
    found = [each.statistics().effect(each.tree, each.node(0))[1] for each in (failing, median)]
    assert found[0] == found[1]


def test_an_observation_of_nothing_changes_nothing() -> None:
    model = AdditiveModel(variance=1.0)
    model.observe([1], 0.0)
    model.observe([], 3.0)
    assert model.means.tolist() == [0.0]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_gains_and_rewards_do_not_depend_on_which_evaluation_ends_first(order: tuple[int, ...]) -> None:
    grown = Grown()
    grown.offer(0, edit("a", X=1), edit("b", X=2), edit("c"))
    nodes, rewards = [grown.begin(0, number) for number in range(3)], (0.3, 0.1, -0.7)
    for each in order:
        grown.tell(nodes[each], rewards[each])
    root, statistics = grown.node(0), grown.statistics()
    # all: -0.3 / 4; X: (0.4 - 0.075) / 3; tuning: (-0.7 - 0.075) / 2. Rewards: -0.1; tuning (-0.7 - 0.1) / 2.
    x, tuning = 0.325 / 3, -0.775 / 2
    assert statistics.gain(grown.tree, root) == pytest.approx(
        [(0.3 + x) / 2, (0.1 + x) / 2, (tuning - 0.7) / 2]
    )
    assert statistics.reward(grown.tree, root)[2] == pytest.approx(-0.55)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), pauses=st.sets(st.integers(0, 30)))
def test_statistics_kept_as_a_tree_grows_are_those_of_the_replayed_tree(seed: int, pauses: set[int]) -> None:
    rng, grown, live = random.Random(seed), Grown("#define X 1\n"), EditStatistics(2.0)  # noqa: S311
    for step in range(30):
        node = rng.randrange(len(grown.tree.nodes))
        factors = {name: rng.randrange(3) for name in rng.sample("XYZ", rng.randrange(3))}
        grown.offer(node, edit("" if factors else rng.choice("abc"), **factors))
        if rng.random() < 0.8:
            grown.make(node, grown.node(node).untried[0], rng.uniform(-1, 1))
        if step in pauses:
            live.follow(grown.tree)
            live.gain(grown.tree, grown.node(node))
    live.follow(grown.tree)
    tree = fold(grown.journal.events)
    replayed = EditStatistics(2.0)
    replayed.follow(tree)
    assert live.spread == replayed.spread
    for node in range(len(tree.nodes)):
        if tree.nodes[node].edits:
            assert (
                live.gain(grown.tree, grown.node(node)).tolist()
                == replayed.gain(tree, tree.nodes[node]).tolist()
            )
            assert (
                live.reward(grown.tree, grown.node(node)).tolist()
                == replayed.reward(tree, tree.nodes[node]).tolist()
            )
            of_live = live.effect(grown.tree, grown.node(node))
            assert of_live.tolist() == replayed.effect(tree, tree.nodes[node]).tolist()
            drawn = [
                statistics.drawn_effect(grown_tree, grown_tree.nodes[node], np.random.default_rng(node))
                for statistics, grown_tree in ((live, grown.tree), (replayed, tree))
            ]
            assert drawn[0].tolist() == drawn[1].tolist()
