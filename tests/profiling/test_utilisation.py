"""How long each unit was busy, from counters that were read on an H100."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mctskernel.profiling import counters as names
from mctskernel.profiling.model.price import Term
from mctskernel.profiling.utilisation import busy_times
from tests.profiling.test_counter_diagnosis import COPY

PERCENTAGES = [
    names.DRAM_THROUGHPUT,
    names.L2_BUSY,
    names.L2_RECEIVING,
    names.WAVEFRONTS_BUSY,
    names.ISSUE_ACTIVE,
    names.TENSOR_BUSY,
    names.FMA_BUSY,
    names.ALU_BUSY,
    names.SPECIAL_BUSY,
    names.SM_ACTIVE,
]


def test_a_copy_is_bound_by_dram_for_most_of_its_time() -> None:
    first, *rest = busy_times(COPY)
    assert first.name == Term.DRAM
    assert first.seconds == pytest.approx(COPY[names.TIME] * 0.8694 / 0.92)
    assert all(each.share <= first.share for each in rest)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(PERCENTAGES), st.floats(0.0, 120.0)))
def test_no_unit_is_busy_for_longer_than_the_run(found: dict[str, float]) -> None:
    times = busy_times({names.SM_ACTIVE: 100.0, **found, names.TIME: 1e-3})
    assert all(0.0 < each.share <= 1.0 and each.seconds <= 1e-3 for each in times)
    assert [each.share for each in times] == sorted((each.share for each in times), reverse=True)
