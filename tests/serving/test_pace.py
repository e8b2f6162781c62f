"""How often somebody may come."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mctskernel.serving.pace import MAX_NAMES, Pace


def test_a_burst_and_then_so_many_a_second() -> None:
    pace = Pace(rate=2.0, burst=3)

    assert [pace.delay("a", 0.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert pace.delay("a", 0.4) == pytest.approx(0.1)
    assert pace.delay("a", 0.5) == 0.0
    assert pace.delay("b", 0.5) == 0.0


@settings(deadline=None)
@given(st.lists(st.floats(0, 2), max_size=60), st.floats(0.5, 10), st.integers(1, 10))
def test_nobody_comes_more_often_whatever_the_rhythm(gaps: list[float], rate: float, burst: int) -> None:
    pace, now, came = Pace(rate, burst), 0.0, 0
    for gap in gaps:
        now += gap
        came += pace.delay("a", now) == 0.0

    assert came <= burst + rate * now + 1e-6


def test_who_waits_as_long_as_was_said_may_come() -> None:
    pace, now = Pace(rate=3.0, burst=1), 0.0
    for _ in range(100):
        assert pace.delay("a", now + 1e-9) == 0.0
        now += pace.delay("a", now + 1e-9) + 1e-9


def test_names_are_bounded() -> None:
    pace = Pace(rate=1e-9, burst=1)
    for number in range(MAX_NAMES + 10):
        pace.delay(str(number), 0.0)

    assert pace.delay(str(MAX_NAMES), 0.0) > 0
    assert pace.delay("0", 0.0) == 0.0
