"""Times taken on GPUs of one kind that differ, compared as if they had been taken on one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mctskernel.core.evaluation import Bottleneck, Cause, Diagnosis, Evaluation, Outcome, Source, Timing
from mctskernel.profiling.changes import compare
from mctskernel.profiling.comparable import beside, timings_beside
from mctskernel.profiling.gains import gain_of
from mctskernel.profiling.guardrails import is_slower, slower_shapes
from mctskernel.profiling.last_gate import unrepeated
from mctskernel.profiling.reward import composite, fastest_first, relief

BASELINES = (100e-6, 300e-6)
"""Seconds of the starting kernel at two shapes, on the first GPU."""

SPEEDUPS = st.tuples(st.floats(0.5, 4.0), st.floats(0.5, 4.0))
FACTORS = st.floats(0.8, 1.25)


def timed(speedups: tuple[float, ...], factor: float = 1.0, share: float = 0.8) -> Evaluation:
    """A kernel on a GPU where everything takes `factor` times as long; its interval is 1 % wide."""
    timings = tuple(
        Timing(
            f"n={index}",
            (seconds := factor * baseline / speedup),
            0.995 * seconds,
            1.005 * seconds,
            (0.999 * seconds, seconds, 1.001 * seconds),
            factor * baseline,
        )
        for index, (baseline, speedup) in enumerate(zip(BASELINES, speedups, strict=True))
    )
    diagnosis = Diagnosis((Cause(Bottleneck.DRAM_BANDWIDTH, share, "DRAM."),))
    return Evaluation(Outcome.OK, Source.MEASURED, timings=timings, diagnosis=diagnosis)


ROOT = timed((1.0, 1.0))


@settings(deadline=None)
@given(st.lists(st.tuples(SPEEDUPS, FACTORS), min_size=2, max_size=8))
def test_the_order_of_kernels_is_that_of_one_gpu_whatever_the_gpus_that_timed_them(
    kernels: list[tuple[tuple[float, float], float]],
) -> None:
    on_one = [(number, timed(speedups)) for number, (speedups, _) in enumerate(kernels)]
    on_many = [(number, timed(speedups, factor)) for number, (speedups, factor) in enumerate(kernels)]
    gains = {number: math.fsum(map(math.log, kernels[number][0])) for number in range(len(kernels))}

    order = fastest_first(on_many, ROOT)

    # Kernels that are equally fast may come in either order.
    assert [gains[each] for each in order] == pytest.approx(
        [gains[each] for each in fastest_first(on_one, ROOT)]
    )


@settings(deadline=None)
@given(SPEEDUPS, SPEEDUPS, FACTORS, FACTORS)
def test_what_is_said_of_a_child_and_its_parent_does_not_depend_on_their_gpus(
    child: tuple[float, float], parent: tuple[float, float], mine: float, theirs: float
) -> None:
    before, after = timed(parent), timed(child, share=0.5)
    apart = timed(parent, theirs), timed(child, mine, share=0.5)

    assert composite(apart[1], apart[0], ROOT).terms == pytest.approx(composite(after, before, ROOT).terms)
    assert relief(apart[1], apart[0]) == pytest.approx(relief(after, before))
    gain, there = gain_of(after, before), gain_of(apart[1], apart[0])
    assert gain is not None
    assert there is not None
    assert there.log == pytest.approx(gain.log)


@pytest.mark.parametrize("factor", [0.9, 1.0, 1.1])
def test_a_slower_gpu_makes_no_kernel_slower_than_its_parent(factor: float) -> None:
    parent = timed((2.0, 2.0))
    assert slower_shapes(timed((2.0, 2.01), factor), parent) == []
    (remark,) = slower_shapes(timed((2.0, 1.6), factor), parent)
    assert remark == "Slower than its parent at n=1: 1.25 times its time."


def test_an_edit_that_changed_nothing_is_a_tie_on_any_gpu() -> None:
    found = compare(timed((2.0, 2.0)), timed((2.0, 2.0), 1.1))
    assert found is not None
    assert found.is_tie


def test_a_claim_is_repeated_on_a_slower_gpu() -> None:
    claimed = timed((2.0, 2.0))
    slow = replace(ROOT, retimed=timed((2.0, 2.0), 1.3).timings)
    assert list(unrepeated(slow, claimed)) == []
    doubtful = replace(ROOT, retimed=timed((1.5, 2.0), 1.3).timings)
    (sentence,) = unrepeated(doubtful, claimed)
    assert sentence.endswith("and 50.0 us as the search has timed it: 1.33 times as long.")


def test_a_timing_beside_another_one_keeps_its_interval_and_its_samples() -> None:
    found, own = beside(timed((2.0, 2.0), 1.1).timings[0], ROOT.timings[0]), timed((2.0, 2.0)).timings[0]
    assert (found.seconds, found.low, found.high) == pytest.approx((own.seconds, own.low, own.high))
    assert found.samples == pytest.approx(own.samples)
    assert found.baseline_seconds == own.baseline_seconds


def test_where_the_starting_kernel_was_timed_unsteadily_less_is_certain() -> None:
    reference = ROOT.timings[0]
    slower = replace(reference, seconds=104e-6, low=103.5e-6, high=104.5e-6)
    unsteady = replace(slower, baseline_spread=0.03), replace(reference, baseline_spread=0.04)
    assert is_slower(beside(slower, reference), reference)
    found = beside(*unsteady)
    assert not is_slower(found, reference)
    assert found.seconds == pytest.approx(slower.seconds)
    assert (found.seconds - found.low) / found.seconds == pytest.approx(0.05, rel=0.01), "hypot of 3 and 4 %"


def test_without_a_baseline_beside_both_times_stay_as_they_are() -> None:
    alone = Timing("n=0", 1e-3, 1e-3, 1e-3)
    assert beside(alone, ROOT.timings[0]) is alone
    assert beside(ROOT.timings[0], alone) is ROOT.timings[0]
    other = replace(ROOT, timings=(alone,))
    assert timings_beside(ROOT, other) == ROOT.timings
