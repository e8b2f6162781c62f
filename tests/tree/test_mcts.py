"""Monte Carlo tree search against values worked by hand, and the explanations of its choices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from mctskernel.core.edit import Factor
from mctskernel.core.evaluation import Outcome
from mctskernel.tree.effects import GUESSED_NOISE, VARIANCE, Effects, in_effect
from mctskernel.tree.events import PredictionRecord
from mctskernel.tree.node import Tree
from mctskernel.tree.selection_account import can_account, selection_accounts
from mctskernel.tree.strategies.mcts import MonteCarlo, PlainUct, puct, uct
from mctskernel.tree.strategies.strategy import Propose
from tests.tree.grown import Grown, edit

PRIORS, VISITS = np.array([0.2, 0.3, 0.5]), np.array([4, 10, 1])


def test_bonuses_by_hand() -> None:
    assert uct(PRIORS, VISITS, 16) == pytest.approx(
        [0.832555, 0.526554, 1.665109], abs=1e-6
    )  # sqrt(ln 16 / n)
    assert puct(PRIORS, VISITS, 16) == pytest.approx([0.16, 0.109091, 1.0], abs=1e-6)  # 4 * prior / (1 + n)


def bandit(**policy: Any) -> Grown:
    """A root (reward 0) with three children: rewards 0.2, 1.0, 0.4, priors 3, 1, 1; no more are allowed."""
    grown = Grown(**{"widening_factor": 3, "widening_exponent": 0.0} | policy)
    grown.propose("a", "b", "c", priors=(3.0, 1.0, 1.0))
    for reward in (0.2, 1.0, 0.4):
        grown.try_next(reward)
    return grown


def test_candidates_carry_q_p_and_u() -> None:
    grown = bandit(exploration=2.0)
    found = MonteCarlo().candidates(grown.tree, grown.node(0))
    assert [each.value for each in found] == pytest.approx([0.2, 1.0, 0.4])
    assert [each.prior for each in found] == pytest.approx([0.6, 0.2, 0.2])
    # Four visits of the root, one of each child: 2 * prior * sqrt(4) / 2.
    assert [each.bonus for each in found] == pytest.approx([1.2, 0.4, 0.4])
    assert grown.search.next_action() == Propose(1) or found[1].score >= found[0].score


def test_selection_follows_the_greatest_score_and_backup_updates_the_way_back() -> None:
    grown = bandit(exploration=0.0)
    assert grown.propose("ba", "bb") == 2
    grown.try_next(3.0)
    root, b = grown.node(0), grown.node(2)
    assert (root.visits, b.visits, b.reward_sum, b.reward_max) == (5, 2, 4.0, 3.0)
    assert (root.reward_sum, root.reward_max) == (pytest.approx(4.6), 3.0)


@pytest.mark.parametrize(("value", "chosen"), [("max", 1), ("mean", 2)])
def test_a_node_is_worth_the_greatest_reward_below_it_or_the_mean(value: str, chosen: int) -> None:
    grown = Grown(exploration=0.0, value=value, widening_factor=2, widening_exponent=0.0)
    first, second = grown.grow(0, 0.0, 1.0)
    grown.grow(first, 1.5, -9.0)
    for node in (first, second):
        grown.offer(node)  # the proposer has nothing more
    grown.offer(3)
    grown.offer_sources(second, "x")
    grown.offer_sources(4, "y")
    assert grown.next_try().node == {1: 4, 2: second}[chosen]


def test_widening_admits_children_as_visits_grow() -> None:
    grown = Grown(widening_factor=1.0, widening_exponent=0.5)
    grown.propose(*"abcdefgh")
    children = []
    for number in range(12):
        if isinstance(action := grown.search.next_action(), Propose):
            grown.offer_sources(action.node, *(f"{action.node} {number} {i}" for i in range(4)))
        grown.try_next(0.0)
        root = grown.node(0)
        children.append((root.visits, len(root.children)))
    assert all(count <= math.ceil(math.sqrt(visits)) for visits, count in children)
    assert children[-1][1] >= 3


def test_pending_evaluations_count_for_widening() -> None:
    grown = Grown(widening_factor=1.0, widening_exponent=1.0)
    grown.propose("a", "b", "c")
    assert [grown.submit()[0].edit.title for _ in range(3)] == ["a", "b", "c"]


def test_a_node_whose_proposer_was_asked_is_passed_over_until_the_search_resumes() -> None:
    grown = bandit(exploration=0.0)
    assert grown.search.next_action() == Propose(2)
    grown.search.request(2)
    assert grown.search.next_action() == Propose(3)
    grown.search.resume()
    assert grown.search.next_action() == Propose(2)
    assert grown.node(0).in_flight == 0
    assert grown.replayed() == grown.tree


def test_exhausted_subtrees_are_passed_over() -> None:
    grown = bandit(exploration=0.0)
    assert [grown.propose() for _ in range(4)] == [2, 3, 1, 0]
    assert grown.tree.exhausted


def test_plain_uct_tries_every_edit_before_it_goes_on_below() -> None:
    grown = Grown(strategy="uct", exploration=1.4)
    grown.propose(*"abcdef")
    assert [grown.submit()[0].node for _ in range(6)] == [0] * 6
    for node in range(1, 7):
        grown.evaluate(node, float(node))
    assert grown.propose() == 0
    assert PlainUct().policy(grown.tree).value == "mean"
    assert grown.search.next_action() == Propose(6)


def test_predictions_order_the_edits_of_a_node() -> None:
    grown = Grown(order="predicted", exploration_fraction=0.0)
    grown.propose("a", "b", "c", priors=(3.0, 2.0, 1.0))
    assert grown.next_try().edit.title == "a"
    grown.search.predict(0, 0, PredictionRecord(1.0, gain=0.5, sigma=0.01))
    assert grown.next_try().edit.title == "b"
    grown.search.predict(0, 2, PredictionRecord(1.0, gain=2.0, sigma=0.9))
    # As far as is known "c", which is within the uncertainty of no gain, equals "b", whose prior is greater.
    assert grown.next_try().edit.title == "b"
    grown.search.predict(0, 1, PredictionRecord(1.0, gain=1.5, sigma=0.9))
    assert grown.next_try().edit.title == "c"


def test_one_node_in_so_many_is_for_edits_that_predictions_do_not_favour() -> None:
    grown = Grown(order="predicted", exploration_fraction=0.5, widening_exponent=1.0)
    grown.propose(*"abcdefgh")
    for number in range(8):
        grown.search.predict(0, number, PredictionRecord(1.0, gain=1.0 + number, sigma=0.1))
    assert [grown.submit()[0].edit.title for _ in range(4)] == ["a", "h", "b", "g"]


def planted(evaluations: int, **policy: Any) -> Grown:
    """A tree whose rewards are sums of effects: each factor's level adds its own."""
    grown = Grown(strategy="mcts", prior="thompson", **policy)
    rng = np.random.default_rng(0)
    for number in range(evaluations):
        a, b = (float(level) for level in rng.integers(0, 3, 2))
        grown.offer(0, edit(a=a, b=b))
        grown.make(0, number, 0.5 * a - 0.2 * b)
    return grown


def test_effects_are_the_posterior_of_the_regression() -> None:
    grown, found = planted(25), Effects()
    found.update(grown.tree)
    names = [Factor(name, level) for name in "ab" for level in (0.0, 1.0, 2.0)]
    nodes = grown.tree.nodes[1:]
    design = np.array(
        [[in_effect(grown.tree, node).get(name.name) == name.level for name in names] for node in nodes],
        float,
    )
    rewards = np.array([node.reward for node in nodes])
    expected = np.linalg.solve(design.T @ design + np.eye(6) / VARIANCE, design.T @ rewards)
    assert [found._mean[found._places[name]] for name in names] == pytest.approx(expected)
    assert found.noise < GUESSED_NOISE


def test_learnt_effects_choose_the_edit_that_helped_elsewhere() -> None:
    grown = planted(40)
    (node,) = grown.grow(0, 0.0)
    grown.offer(node, edit(a=0.0), edit(a=2.0), edit(b=2.0), edit(a=1.0, b=2.0))
    strategy, first = MonteCarlo(), []
    for _ in range(20):
        strategy.update(grown.tree)
        first.append(strategy.ranked(grown.tree, grown.node(node))[0])
        grown.grow(0, 0.0)  # another tree, another draw
    assert first.count(1) >= 15


def test_failures_count_as_the_median_of_what_works() -> None:
    grown = Grown(prior="thompson")
    grown.offer(0, edit(a=1.0), edit(b=1.0))
    grown.make(0, 0, 1.0)
    grown.make(0, 1, -99.0, Outcome.BUILD_ERROR)
    found = Effects()
    found.update(grown.tree)
    assert abs(found._mean[found._places[Factor("b", 1.0)]]) < 0.5


@pytest.mark.parametrize("strategy", ["mcts", "uct", "edit-model"])
def test_the_account_of_a_node_lists_the_chosen_edit_first(strategy: str) -> None:
    grown = Grown(strategy=strategy, prior="thompson")
    for number in range(60):
        if isinstance(action := grown.search.next_action(), Propose):
            grown.offer(action.node, *(edit(x=float(number), y=float(i)) for i in range(4)))
        else:
            grown.try_next(math.sin(number))
    count = len(grown.tree.nodes)
    accounts = list(selection_accounts(grown.journal.events, range(count)))
    assert [account.node for account in accounts] == list(range(1, count))
    assert all(choice.rivals[0].chosen for account in accounts for choice in account.choices)
    (one,) = selection_accounts(grown.journal.events, {7})
    assert one == accounts[6]
    for choice in (choice for account in accounts for choice in account.choices[:-1]):
        for rival in choice.rivals:
            visits, value, prior, bonus, total = rival.terms
            assert visits >= 1
            assert 0 <= prior <= 1
            assert total == pytest.approx(value + bonus)
    assert not can_account("random")


def test_an_empty_tree_has_no_candidates() -> None:
    assert MonteCarlo().step(Tree(), np.random.default_rng) is None
