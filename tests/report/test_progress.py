"""The best so far, by evaluations, seconds and money."""

import pytest

from mctskernel.core.evaluation import Evaluation, Outcome, Score
from mctskernel.report.progress import moments
from mctskernel.run import spent_seconds
from mctskernel.tree.events import Evaluated, Event, Proposed, Resumed, Started
from mctskernel.tree.policy import Policy
from tests.synthetic_run import failed, quarantined, timed


def evaluated(node: int, at: float, evaluation: Evaluation, speedup: float = 0.0) -> Evaluated:
    return Evaluated(node=node, evaluation=evaluation, score=Score(0.0, speedup), at=at)


EVENTS: tuple[Event, ...] = (
    Started(policy=Policy(), seed=0, at=100.0),
    evaluated(0, 101.0, timed(100), 1.0),
    Proposed(node=0, edits=(), dollars=0.25, at=102.0),
    evaluated(1, 104.0, timed(50), 2.0),
    evaluated(2, 105.0, failed(Outcome.WRONG_RESULT)),
    evaluated(3, 106.0, quarantined(1), 100.0),
    Resumed(at=1000.0),
    Proposed(node=1, edits=(), dollars=0.5, at=1001.0),
    evaluated(4, 1003.0, timed(25), 4.0),
    evaluated(5, 1004.0, timed(40), 2.5),
)


def test_the_best_never_falls_and_is_always_believed() -> None:
    found = list(moments(EVENTS))
    assert [moment.best_speedup for moment in found] == [1.0, 2.0, 2.0, 2.0, 4.0, 4.0]
    assert [moment.best for moment in found] == [0, 1, 1, 1, 4, 4]
    assert [moment.speedup for moment in found] == [1.0, 2.0, 0.0, 0.0, 4.0, 2.5]
    assert [moment.evaluations for moment in found] == [1, 2, 3, 4, 5, 6]


def test_pauses_between_processes_are_nobodys_time() -> None:
    found = list(moments(EVENTS))
    assert [moment.seconds for moment in found] == [1.0, 4.0, 5.0, 6.0, 9.0, 10.0]
    assert found[-1].seconds == pytest.approx(spent_seconds(EVENTS))
