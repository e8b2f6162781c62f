"""Scores: against worked examples of their definitions."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mctskernel.problems.scores import (
    Scored,
    fast_p,
    fast_p_interval,
    geomean,
    geomean_interval,
    mean_speedup,
    speed_of_light,
    speed_of_light_of,
)

SOME = [Scored(True, 2.0), Scored(True, 0.5), Scored(False), Scored(True, 1.0)]
TIMES = st.floats(1e-7, 1e-1)


def test_fast_p_counts_what_is_correct_and_faster_over_all() -> None:
    assert fast_p(SOME, 0) == 0.75
    assert fast_p(SOME, 0.5) == 0.5, "as fast as the threshold is not faster"
    assert fast_p(SOME, 1) == 0.25
    assert fast_p(SOME, 2) == 0
    assert fast_p([], 1) == 0


def test_a_fast_one_that_is_wrong_counts_nowhere() -> None:
    wrong = [Scored(False, 100.0)]
    assert fast_p(wrong, 0) == fast_p(wrong, 1) == 0
    assert geomean(wrong) is None
    assert mean_speedup(wrong) == 0


def test_a_speedup_that_is_not_known_is_no_speedup() -> None:
    unknown = [Scored(True)]
    assert fast_p(unknown, 0) == 1
    assert fast_p(unknown, 0.5) == 0
    assert geomean(unknown) is None
    assert mean_speedup(unknown) is None


def test_the_interval_of_a_share_holds_it() -> None:
    low, high = fast_p_interval(SOME, 1)
    assert 0 < low < 0.25 < high < 1


def test_geomean_is_of_correct_results() -> None:
    assert geomean(SOME) == pytest.approx(1.0)
    assert geomean([Scored(True, 2.0), Scored(True, 8.0)]) == pytest.approx(4.0)


def test_the_interval_of_the_geomean_is_of_the_samples() -> None:
    sampled = [
        Scored(True, 2.0, (2e-3, 2.1e-3, 1.9e-3), (1e-3, 1.05e-3, 0.95e-3)),
        Scored(True, 0.5, (1e-3, 1e-3, 1e-3), (2e-3, 2e-3, 2e-3)),
    ]
    found = geomean_interval(sampled)
    assert found is not None
    assert found.low <= found.mean <= found.high
    assert found.mean == pytest.approx(1.0)
    assert geomean_interval(SOME) is None


def test_one_failure_is_a_mean_of_nothing() -> None:
    assert mean_speedup([Scored(True, 3.0), Scored(True, 1.0)]) == 2.0
    assert mean_speedup(SOME) == 0
    assert mean_speedup([]) is None


def test_a_speedup_is_a_positive_number() -> None:
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="positive"):
            Scored(True, bad)


@settings(deadline=None)
@given(TIMES, TIMES, TIMES)
def test_the_speed_of_light_score_is_anchored(first: float, second: float, third: float) -> None:
    bound, faster, baseline = sorted((first, second, third))
    score = speed_of_light(faster, baseline, bound)
    assert 0 <= score <= 1
    assert speed_of_light(bound, baseline, bound) == 1
    if baseline > bound:
        assert speed_of_light(baseline, baseline, bound) == pytest.approx(0.5)
        assert score >= 0.5 - 1e-9
        assert speed_of_light(10 * baseline, baseline, bound) < 0.5
    else:
        assert speed_of_light(2 * bound, baseline, bound) == 0


def test_a_problem_scores_the_mean_of_its_workloads() -> None:
    assert speed_of_light_of([0.5, None, 1.0]) == pytest.approx(0.5)
    assert speed_of_light_of([]) is None
    with pytest.raises(ValueError, match="positive"):
        speed_of_light(1.0, 1.0, 0.0)
