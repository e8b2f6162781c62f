"""What a term's change did to the time: all of it is accounted for, and nothing is blamed on what stayed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mctskernel.core.evaluation import LaunchTerms
from mctskernel.profiling.model.explanation import term_changes
from mctskernel.profiling.model.price import Term, combined

NAMES = ("a", "b", "c")
terms = st.dictionaries(
    st.sampled_from([term.value for term in Term]), st.one_of(st.just(0.0), st.floats(1e-8, 1e-2)), max_size=6
)


def launch(kernel: str, parts: dict[str, float]) -> LaunchTerms:
    return LaunchTerms(kernel, combined(parts), parts)


plans = st.lists(st.builds(launch, st.sampled_from(NAMES), terms), max_size=3)


@given(plans, plans)
def test_effects_add_up_to_the_change_of_the_time(
    before: list[LaunchTerms], after: list[LaunchTerms]
) -> None:
    change = math.fsum(each.seconds for each in after) - math.fsum(each.seconds for each in before)
    assert math.fsum(each.effect for each in term_changes(before, after)) == pytest.approx(change, abs=1e-12)


def test_launches_answer_to_those_of_the_same_kernel() -> None:
    first, second = launch("a", {Term.DRAM: 1e-4}), launch("b", {Term.DRAM: 3e-4})
    (change,) = term_changes([first, second], [second])
    assert (change.before, change.after) == pytest.approx((4e-4, 3e-4))
    assert change.effect == pytest.approx(-1e-4)
