"""What a proposer is told of the search as a whole."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from mctskernel.core.edit import Edit
from mctskernel.core.evaluation import Evaluation, Outcome, Score, Source
from mctskernel.tree.track_record import KEPT, TrackRecord
from tests.tree.by_hand import Grown, edit


def record_of(grown: Grown) -> TrackRecord:
    record = TrackRecord()
    record.follow(grown.tree)
    return record


def by(proposer: str, title: str) -> Edit:
    return replace(edit(title), proposer=proposer)


def test_standings_are_the_log_gains_of_each_proposer_in_the_order_of_evaluation() -> None:
    grown = Grown(reward=1.0)
    grown.offer(0, by("rules", "a"), by("llm/memory", "b"), by("rules", "c"), by("rules", "d"))
    late = grown.begin(0, 0)
    grown.make(0, 1, 4.0)
    grown.make(0, 2, 0.5)
    grown.make(0, 3, 0.0, Outcome.BUILD_ERROR)
    grown.tell(late, 2.0)
    assert record_of(grown).standings() == {
        "llm/memory": (pytest.approx(math.log(4)),),
        "rules": (0.0, 0.0, pytest.approx(math.log(2))),
    }


def test_gains_are_over_the_parent_and_failed_parents_have_none() -> None:
    grown = Grown(reward=1.0)
    (first,) = grown.grow(0, 2.0)
    grown.grow(first, 3.0)
    (broken,) = grown.grow(0, 0.0, outcome=Outcome.BUILD_ERROR)
    grown.grow(broken, 5.0)
    assert record_of(grown).standings() == {
        "": (pytest.approx(math.log(2)), pytest.approx(math.log(1.5)), 0.0, 0.0)
    }


def test_what_worked_elsewhere_leaves_out_what_the_node_knows() -> None:
    grown = Grown(reward=1.0)
    good, better, worse = grown.grow(0, 2.0, 3.0, 0.5)
    (below,) = grown.grow(good, 2.5)
    record = record_of(grown)
    assert [each.gain for each in record.elsewhere(grown.tree, worse, 8)] == [
        pytest.approx(gain) for gain in (3.0, 2.0, 1.25)
    ]
    assert [each.gain for each in record.elsewhere(grown.tree, worse, 1)] == [pytest.approx(3.0)]
    assert [each.gain for each in record.elsewhere(grown.tree, below, 8)] == [pytest.approx(3.0)], (
        "not its own way"
    )
    assert [each.gain for each in record.elsewhere(grown.tree, good, 8)] == [pytest.approx(3.0)], (
        "nor its children"
    )
    assert record.best_speedup == 3.0
    assert better in grown.tree.evaluated


def test_a_time_that_is_not_believed_is_no_gain() -> None:
    grown = Grown(reward=1.0)
    grown.offer(0, edit("too good"))
    made = grown.begin(0, 0)
    quarantined = Evaluation(Outcome.OK, Source.MODELLED, quarantine="faster than the floor")
    grown.search.evaluated(made, quarantined, Score(9.0, 9.0))
    record = record_of(grown)
    assert record.standings() == {"": (0.0,)}
    assert record.elsewhere(grown.tree, 0, 8) == ()
    assert record.best_speedup == 1.0


def test_only_the_greatest_gains_are_kept_and_following_at_once_or_bit_by_bit_is_the_same() -> None:
    grown, bit_by_bit = Grown(reward=1.0), TrackRecord()
    for number in range(2 * KEPT):
        grown.grow(0, 1.0 + (number * 37 % 101) / 100)
        bit_by_bit.follow(grown.tree)
    at_once = record_of(grown)
    (other,) = grown.grow(1, 0.1)
    found = at_once.elsewhere(grown.tree, other, 1000)
    assert found == bit_by_bit.elsewhere(grown.tree, other, 1000)
    assert KEPT - 1 <= len(found) <= KEPT
    assert min(each.gain for each in found) > 1.3
    assert at_once.standings() == bit_by_bit.standings()
