"""Intervals and tests by drawing again: against what can be counted by hand, and how often they are right."""

import math

import numpy as np
import pytest

from mctskernel.core.resampling import estimate, holm, rank_correlation, ratio_of_medians, sign_flip_p


def test_the_interval_of_a_mean_is_that_of_the_textbook() -> None:
    sample = np.random.default_rng(1).normal(5.0, 2.0, 400)
    found = estimate([sample])
    error = 1.96 * sample.std() / math.sqrt(400)
    assert found.mean == pytest.approx(sample.mean())
    assert found.low == pytest.approx(sample.mean() - error, abs=0.05)
    assert found.high == pytest.approx(sample.mean() + error, abs=0.05)


def test_a_ratio_over_several_shapes_is_their_geometric_mean() -> None:
    one, two, eight = (np.full(5, value) for value in (1.0, 2.0, 8.0))
    found = ratio_of_medians([(two, one), (eight, one)])
    assert (found.low, found.mean, found.high) == pytest.approx((4.0, 4.0, 4.0))


def test_flipping_signs_counts_every_choice() -> None:
    # Of the 8 choices of signs of 1, 2, 3, those with a sum of 6 or -6 are two.
    assert sign_flip_p(np.array([1.0, 2.0, 3.0])) == pytest.approx(2 / 8)
    # +6 and -6, and with the 1 flipped +4 and -4.
    assert sign_flip_p(np.array([-1.0, 2.0, 3.0])) == pytest.approx(4 / 8)
    # Sums of the same numbers in another order count as equal: 0.3, and what rounds to it.
    assert sign_flip_p(np.array([0.1, 0.2, 0.3, -0.3])) == pytest.approx(12 / 16)


def test_holm_raises_the_lowest_most_and_keeps_the_order() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_ties_share_their_mean_rank_and_constants_have_no_correlation() -> None:
    values = np.array([3.0, 1.0, 2.0, 10.0])
    assert rank_correlation(values, values**3) == pytest.approx(1.0)
    assert rank_correlation(values, -values) == pytest.approx(-1.0)
    # Worked by hand: ranks 1 2 3 4 against 1.5 1.5 3 4, covariance 4.5 / sqrt(5 * 4.5).
    tied = rank_correlation(np.array([1.0, 2.0, 3.0, 4.0]), np.array([5.0, 5.0, 6.0, 7.0]))
    assert tied == pytest.approx(4.5 / (5 * 4.5) ** 0.5)
    assert np.isnan(rank_correlation(values, np.ones(4)))
    assert np.isnan(rank_correlation(values[:2], values[:2]))
