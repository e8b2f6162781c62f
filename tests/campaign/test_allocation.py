"""Which search the next evaluation goes to: what holds of any histories."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mctskernel.campaign.allocation import (
    UNKNOWN_HEADROOM,
    Improvement,
    Standing,
    expected_saving,
    headroom_after,
    ranked,
)

SECONDS = st.floats(1e-6, 10.0)
HEADROOMS = st.none() | st.floats(0.0, 5.0)


@st.composite
def standings(draw: st.DrawFn, name: str = "one") -> Standing:
    """A search after up to 40 evaluations, of which some improved."""
    evaluations = draw(st.integers(0, 40))
    places = sorted(draw(st.sets(st.integers(1, max(1, evaluations)), max_size=evaluations and 8)))
    reached, improvements = 0.0, []
    for place in places:
        reached += draw(st.floats(1e-3, 0.5))
        improvements.append(Improvement(place, reached))
    return Standing(
        name=name,
        seconds=draw(SECONDS),
        evaluations=evaluations,
        improvements=improvements,
        headroom=draw(HEADROOMS),
        in_flight=draw(st.integers(0, 8)),
        cost=draw(st.floats(1e-3, 10.0)),
    )


CAMPAIGNS = st.lists(standings(), min_size=1, max_size=6).map(
    lambda found: [dataclasses.replace(each, name=f"task{place}") for place, each in enumerate(found)]
)


@given(standings(), st.floats(1.01, 100.0))
def test_a_larger_part_of_the_model_promises_more_in_proportion(standing: Standing, factor: float) -> None:
    larger = dataclasses.replace(standing, seconds=factor * standing.seconds)
    assert expected_saving(larger) == pytest.approx(factor * expected_saving(standing))


@given(standings())
def test_nothing_is_expected_beyond_the_headroom(standing: Standing) -> None:
    left = headroom_after(standing.headroom, standing.log_speedup)
    assert 0.0 <= expected_saving(standing) <= standing.seconds_now * -math.expm1(-left)


@given(standings())
def test_nothing_is_expected_at_the_floor(standing: Standing) -> None:
    assert expected_saving(dataclasses.replace(standing, headroom=standing.log_speedup)) == 0.0


def test_a_floor_that_was_passed_is_none() -> None:
    assert headroom_after(1.0, 1.2) == headroom_after(None, 1.2) == UNKNOWN_HEADROOM
    assert headroom_after(1.0, 0.75) == 0.25


@given(standings(), st.integers(1, 50))
def test_evaluations_without_an_improvement_promise_ever_less(standing: Standing, more: int) -> None:
    stagnant = dataclasses.replace(standing, evaluations=standing.evaluations + more)
    awaited = dataclasses.replace(standing, in_flight=standing.in_flight + more)
    before = expected_saving(standing)
    for later in (stagnant, awaited):
        assert expected_saving(later) < before or before == 0.0


@given(CAMPAIGNS, st.randoms())
def test_the_order_of_the_tasks_decides_nothing(campaign: list[Standing], random: Random) -> None:
    shuffled = campaign[:]
    random.shuffle(shuffled)
    assert ranked(shuffled) == ranked(campaign)


@given(CAMPAIGNS)
def test_whatever_promises_something_comes_to_its_turn(campaign: list[Standing]) -> None:
    """Nobody improves: each search that isn't at its floor is chosen, however small its part is."""
    promising = {each.name for each in campaign if expected_saving(each) / each.cost > 1e-9}
    largest = max(expected_saving(each) / each.cost for each in campaign)
    for name in promising:
        wanted = next(each for each in campaign if each.name == name)
        worth = expected_saving(wanted) / wanted.cost
        others = [_stagnant(each, largest / worth) for each in campaign if each.name != name]
        assert ranked([*others, wanted])[0] == name


def _stagnant(standing: Standing, times: float) -> Standing:
    """After so many times as many evaluations without an improvement as it may have had."""
    more = math.ceil(1000 * (times + 1))
    return dataclasses.replace(standing, evaluations=standing.evaluations + more)


def test_of_equals_the_first_by_name_is_chosen_and_cost_divides() -> None:
    both = [Standing("b", 1.0), Standing("a", 1.0)]
    assert ranked(both) == ("a", "b")
    assert ranked([both[0], dataclasses.replace(both[1], cost=1.5)]) == ("b", "a")


def searched(curves: Sequence[Sequence[float]], seconds: Sequence[float], evaluations: int) -> list[int]:
    """How many evaluations each of some searches gets, whose best log speed-ups by evaluation are known."""
    counts = [0] * len(curves)
    for _ in range(evaluations):
        standing = [
            Standing(str(place), seconds[place], count, _improvements(curve[:count]), headroom=math.log(10.0))
            for place, (curve, count) in enumerate(zip(curves, counts, strict=True))
        ]
        counts[int(ranked(standing)[0])] += 1
    return counts


def _improvements(curve: Sequence[float]) -> list[Improvement]:
    found, best = [], 0.0
    for number, reached in enumerate(curve, 1):
        if reached > best:
            best = reached
            found.append(Improvement(number, reached))
    return found


def test_what_improves_gets_more_than_what_stagnates() -> None:
    steady = [0.02 * number for number in range(1, 101)]
    stuck = [0.0] * 100
    assert searched([steady, stuck], (0.5, 0.5), 40)[0] > 24
    assert searched([steady, stuck], (0.4, 0.6), 60)[0] > 30, "a stuck kernel is left for a smaller one"


def test_the_larger_of_two_equal_kernels_gets_more() -> None:
    curve = [0.2 * math.log1p(number // 4) for number in range(1, 101)]
    counts = searched([curve, curve, curve], (0.6, 0.3, 0.1), 60)
    assert counts == sorted(counts, reverse=True)
    assert min(counts) > 0
