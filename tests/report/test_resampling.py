"""Intervals and tests by drawing again: against what can be counted by hand, and how often they are right."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mctskernel.report.resampling import (
    EXACT,
    estimate,
    holm,
    ratio_of_medians,
    share_interval,
    sign_flip_p,
)


def test_the_interval_of_a_mean_is_that_of_the_textbook() -> None:
    sample = np.random.default_rng(1).normal(5.0, 2.0, 400)
    found = estimate([sample])
    error = 1.96 * sample.std() / math.sqrt(400)
    assert found.mean == pytest.approx(sample.mean())
    assert found.low == pytest.approx(sample.mean() - error, abs=0.05)
    assert found.high == pytest.approx(sample.mean() + error, abs=0.05)


def test_the_interval_of_a_ratio_holds_the_true_one_about_as_often_as_it_says() -> None:
    rng, held = np.random.default_rng(2), 0
    for _ in range(60):
        slow, fast = rng.normal(2.0, 0.05, 50), rng.normal(1.0, 0.05, 50)
        found = ratio_of_medians([(slow, fast)])
        held += found.low <= 2.0 <= found.high
    assert 52 <= held <= 60


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


@pytest.mark.parametrize("count", [EXACT - 4, EXACT + 8])
def test_without_a_difference_low_values_are_as_rare_as_they_say(count: int) -> None:
    rng = np.random.default_rng(3)
    found = np.array([sign_flip_p(rng.standard_normal(count)) for _ in range(300)])
    assert np.mean(found <= 0.05) <= 0.09
    assert np.mean(found <= 0.5) == pytest.approx(0.5, abs=0.1)


def test_drawn_signs_agree_with_all_of_them() -> None:
    differences = np.random.default_rng(4).normal(0.4, 1.0, EXACT)
    padded = np.append(differences, 0.0)  # changes nothing but the count
    assert sign_flip_p(padded) == pytest.approx(sign_flip_p(differences), abs=0.02)


def test_a_p_value_is_never_nought() -> None:
    assert sign_flip_p(np.ones(40)) == pytest.approx(1 / 10_001)


def test_holm_raises_the_lowest_most_and_keeps_the_order() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_wilsons_interval_of_a_share() -> None:
    # Brown, Cai and DasGupta 2001 give 0 to 0.161 for none of twenty.
    assert share_interval(0, 20) == pytest.approx((0.0, 0.161), abs=0.001)
    assert share_interval(10, 20) == pytest.approx((0.299, 0.701), abs=0.001)
    assert share_interval(0, 0) == (0.0, 1.0)
