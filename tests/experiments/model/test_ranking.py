"""What a ranking is worth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mctskernel.experiments.model.ranking import Ranking, by_family, rank, regret, summarise

MEASURED = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])


def test_a_perfect_ranking_regrets_nothing_whatever_its_scale() -> None:
    found = rank("sum", MEASURED, 10 * MEASURED**3)
    assert (found.correlation, found.first, found.best_of_five) == pytest.approx((1.0, 1.0, 1.0))


def test_regret_is_the_time_of_the_best_pick_over_the_best_time() -> None:
    backwards = MEASURED[::-1]
    assert regret(MEASURED, backwards, 1) == 7.0
    assert regret(MEASURED, backwards, 5) == 3.0
    assert regret(MEASURED, backwards, 7) == 1.0


def test_among_equals_the_slowest_is_picked_first() -> None:
    assert regret(MEASURED, np.ones(7), 1) == 7.0
    assert regret(MEASURED[::-1], np.ones(7), 5) == 3.0


def test_ties_share_their_rank() -> None:
    found = rank("sum", np.array([1.0, 2.0, 3.0]), np.array([1.0, 1.0, 2.0]))
    assert found.correlation == pytest.approx(math.sqrt(3) / 2)


def test_a_constant_ranks_nothing_and_counts_as_zero() -> None:
    found = rank("sum", MEASURED, np.ones(7))
    assert math.isnan(found.correlation)
    assert summarise([found, rank("dot", MEASURED, MEASURED)]).correlation == pytest.approx(0.5)


def test_summaries_have_means_and_worst_cases() -> None:
    rankings = [
        Ranking("a", 9, 0.9, 1.1, 1.0, (1.0, 1.0, 1.0)),
        Ranking("b", 9, 0.5, 1.5, 1.2, (1.0, 1.0, 1.0)),
    ]
    found = summarise(rankings)
    assert (found.correlation, found.worst_correlation) == pytest.approx((0.7, 0.5))
    assert (found.first, found.worst_first) == pytest.approx((1.3, 1.5))
    assert (found.best_of_five, found.worst_best_of_five) == pytest.approx((1.1, 1.2))


def test_families_are_ranked_apart_and_single_kernels_left_out() -> None:
    families = ["a", "b", "a", "b", "a", "b", "c"]
    measured = np.array([1.0, 100.0, 2.0, 200.0, 3.0, 300.0, 5.0])
    modelled = np.array([10.0, 3.0, 20.0, 2.0, 30.0, 1.0, 5.0])
    found = by_family(families, measured, modelled)
    assert {each.family: each.correlation for each in found} == pytest.approx({"a": 1.0, "b": -1.0})
    assert [each.first for each in found] == [1.0, 3.0]
    assert [each.family for each in by_family(families, measured, modelled, lambda f: f == "b")] == ["b"]
