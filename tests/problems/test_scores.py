"""Scores against worked examples of their definitions."""

from __future__ import annotations

import pytest

from mctskernel.problems.scores import EAGER, fast_p, score_results

SOME = [2.0, 0.5, None, 1.0]


def test_fast_p_is_the_share_of_correct_and_faster_results() -> None:
    assert [fast_p(SOME, threshold) for threshold in (0, 0.5, 1, 2)] == [0.75, 0.5, 0.25, 0]
    assert fast_p([], 1) == 0
    assert [fast_p([0.0], threshold) for threshold in (0, 0.5)] == [1, 0], "unknown speed-up"


def test_runs_are_scored_against_a_baseline() -> None:
    found = score_results(EAGER, [4.0, 1.0, None, 0.0])
    shares = {each.threshold: each.share for each in found.fast}
    assert shares == {0.0: 0.75, 0.5: 0.5, 1.0: 0.25, 1.5: 0.25, 2.0: 0.25}
    assert all(each.low < each.share < each.high for each in found.fast)
    assert (found.geomean, found.known) == (pytest.approx(2.0), 2)
