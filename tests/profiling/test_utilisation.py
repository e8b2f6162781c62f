"""How long each unit was busy, from counters that were read on an H100."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mctskernel.profiling import counters as names
from mctskernel.profiling.architecture import load_architecture
from mctskernel.profiling.counter_diagnosis import diagnose_launches
from mctskernel.profiling.model.price import Term
from mctskernel.profiling.utilisation import busy_sentences, busy_times
from tests.profiling.test_counter_diagnosis import COPY, TRANSPOSE

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


def test_the_sentences_say_what_binds_and_what_is_next() -> None:
    binds, follows = busy_sentences(COPY)
    assert binds == "Bound by DRAM: busy for 86.7 us (94%) of a run of 91.8 us with counters."
    assert follows == "Next is L2: busy for 31.2 us (34%)."


def test_reads_keep_l2_busy_with_sending_whoever_counted_them() -> None:
    gpu = load_architecture("H100")
    for reads in (names.L2_READS, names.L1_FROM_L2):
        (first, *_) = busy_times({names.TIME: 1e-3, names.SM_ACTIVE: 100.0, reads: 2.0e8}, gpu)
        assert (first.name, first.share) == (Term.L2, pytest.approx(0.744, abs=0.001))


def test_where_no_unit_is_busy_latency_binds() -> None:
    binds, *_ = busy_sentences({**TRANSPOSE, names.WAVEFRONTS_BUSY: 1.0, names.L2_BUSY: 1.0})
    assert "Bound by latency: no unit is busy for" in binds


def test_idle_multiprocessors_are_the_tail() -> None:
    binds, *_ = busy_sentences({names.TIME: 1e-3, names.SM_ACTIVE: 10.0, names.ISSUE_ACTIVE: 50.0})
    assert (
        binds
        == "Bound by tail: multiprocessors have no work for 900 us (90%) of a run of 1 ms with counters."
    )


def test_without_utilisations_there_is_nothing_to_say() -> None:
    assert busy_times({names.TIME: 1e-3}) == ()
    assert busy_sentences({names.REGISTERS: 32.0}) == ()


def test_totals_will_do_where_the_gpu_is_known() -> None:
    totals = {name: COPY[name] for name in (names.TIME, names.DRAM_BYTES, names.SM_ACTIVE)}
    assert busy_times(totals, load_architecture("H100"))[0].name == Term.DRAM


def test_the_diagnosis_of_a_measured_plan_carries_them() -> None:
    assert diagnose_launches([COPY]).explanation.startswith("Bound by DRAM")
    assert "a run of 184 us" in diagnose_launches([COPY, COPY]).explanation


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(PERCENTAGES), st.floats(0.0, 120.0)))
def test_no_unit_is_busy_for_longer_than_the_run(found: dict[str, float]) -> None:
    times = busy_times({names.SM_ACTIVE: 100.0, **found, names.TIME: 1e-3})
    assert all(0.0 < each.share <= 1.0 and each.seconds <= 1e-3 for each in times)
    assert [each.share for each in times] == sorted((each.share for each in times), reverse=True)
