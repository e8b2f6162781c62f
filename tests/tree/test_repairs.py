"""Repairs at once: each failure is given edits one time, and they are tried until one of them works."""

from __future__ import annotations

from typing import Any

import pytest

from mctskernel.core.evaluation import Outcome
from mctskernel.tree.search import Try
from mctskernel.tree.strategies import STRATEGIES
from mctskernel.tree.strategies.strategy import Propose

FAILED = Outcome.BUILD_ERROR


def begun(tell: Any, **policy: object) -> Any:
    """A tree whose root was given two edits, of which the first doesn't build."""
    story = tell(**{"repair": "at-once", "patience": 3} | policy)
    story.evaluate(0, 0.0)
    story.propose("broken", "fine")
    story.try_next(-1.0, FAILED)
    return story


@pytest.mark.parametrize("strategy", list(STRATEGIES))
def test_a_failure_comes_before_all_else(tell: Any, strategy: str) -> None:
    story = begun(tell, strategy=strategy)
    assert story.search.ask() == Propose((0, 1))
    story.propose("mended", "mended otherwise")
    attempt = story.search.ask()
    assert isinstance(attempt, Try)
    assert (attempt.node, attempt.edit.title) == (1, "mended")


def test_what_works_ends_the_repair(tell: Any) -> None:
    story = begun(tell)
    story.propose("mended", "mended otherwise")
    story.try_next(1.0)
    request = story.search.ask()
    assert getattr(request, "node", None) != 1 or request.edit.title != "mended otherwise"


def test_what_fails_again_is_followed_by_the_next_repair_down_to_the_depth(tell: Any) -> None:
    story = begun(tell, repair_depth=1)
    story.propose("worse", "mended")
    story.try_next(-1.0, FAILED)
    attempt = story.search.ask()
    assert isinstance(attempt, Try)
    assert attempt.edit.title == "mended", "a second failure in a row is not mended"


def test_a_failure_that_nobody_can_mend_is_asked_about_once(tell: Any) -> None:
    story = begun(tell, strategy="mcts")
    story.propose()
    request = story.search.ask()
    assert isinstance(request, Try)
    assert request.edit.title == "fine", "the search goes on with what is left"


def test_a_repair_in_flight_is_waited_for(tell: Any) -> None:
    story = begun(tell, strategy="mcts")
    story.propose("mended", "mended otherwise")
    story.submit()
    request = story.search.ask()
    assert isinstance(request, Try)
    assert request.edit.title == "fine"


@pytest.mark.parametrize("outcome", [Outcome.TIMEOUT, Outcome.REJECTED])
def test_what_cannot_be_mended_is_left(tell: Any, outcome: Outcome) -> None:
    story = tell(repair="at-once")
    story.evaluate(0, 0.0)
    story.propose("slow", "fine")
    story.try_next(-1.0, outcome)
    request = story.search.ask()
    assert isinstance(request, Try)
    assert request.edit.title == "fine"


def test_in_turn_a_failure_waits(tell: Any) -> None:
    story = begun(tell, repair="in-turn", strategy="mcts")
    request = story.search.ask()
    assert isinstance(request, Try)
    assert request.edit.title == "fine"
