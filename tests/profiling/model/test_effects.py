"""What a term's change did to the time: all of it is accounted for, and nothing is blamed on what stayed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mctskernel.core.evaluation import LaunchTerms
from mctskernel.profiling.model.effects import term_changes
from mctskernel.profiling.model.price import Term, combined

NAMES = ("a", "b", "c")
terms = st.dictionaries(
    st.sampled_from([term.value for term in Term]), st.one_of(st.just(0.0), st.floats(1e-8, 1e-2)), max_size=6
)


def launch(kernel: str, parts: dict[str, float]) -> LaunchTerms:
    return LaunchTerms(kernel, combined(parts), parts)


plans = st.lists(st.builds(launch, st.sampled_from(NAMES), terms), max_size=3)


@settings(deadline=None)
@given(plans, plans)
def test_effects_add_up_to_the_change_of_the_time(
    before: list[LaunchTerms], after: list[LaunchTerms]
) -> None:
    change = math.fsum(each.seconds for each in after) - math.fsum(each.seconds for each in before)
    assert math.fsum(each.effect for each in term_changes(before, after)) == pytest.approx(change, abs=1e-12)


@settings(deadline=None)
@given(terms, terms)
def test_a_term_pulls_the_time_its_own_way(before: dict[str, float], after: dict[str, float]) -> None:
    for change in term_changes([launch("k", before)], [launch("k", after)]):
        if change.after == change.before:
            assert change.effect == 0.0
        else:
            assert change.effect * (change.after - change.before) >= -1e-24


@settings(deadline=None)
@given(plans)
def test_nothing_moves_between_a_plan_and_itself(plan: list[LaunchTerms]) -> None:
    assert all(each.effect == 0.0 and each.before == each.after for each in term_changes(plan, plan))


@settings(deadline=None)
@given(plans, plans)
def test_the_largest_effect_comes_first(before: list[LaunchTerms], after: list[LaunchTerms]) -> None:
    effects = [abs(each.effect) for each in term_changes(before, after)]
    assert effects == sorted(effects, reverse=True)


def test_two_equal_terms_that_fall_together_share_the_gain() -> None:
    before, after = {"DRAM": 4e-4, "fp32 pipe": 4e-4}, {"DRAM": 1e-4, "fp32 pipe": 1e-4}
    first, second = term_changes([launch("k", before)], [launch("k", after)])
    assert first.effect == pytest.approx(second.effect, rel=0.02)


def test_a_launch_that_is_gone_is_all_gain() -> None:
    kept, gone = launch("a", {Term.DRAM: 1e-4}), launch("b", {Term.FMA: 2e-4})
    (change, other) = term_changes([kept, gone], [kept])
    assert (change.name, change.before, change.after) == (Term.FMA, 2e-4, 0.0)
    assert change.effect == pytest.approx(-2e-4)
    assert other.effect == 0.0


def test_launches_answer_to_those_of_the_same_kernel() -> None:
    first, second = launch("a", {Term.DRAM: 1e-4}), launch("b", {Term.DRAM: 3e-4})
    (change,) = term_changes([first, second], [second])
    assert (change.before, change.after) == pytest.approx((4e-4, 3e-4))
    assert change.effect == pytest.approx(-1e-4)
