"""Times taken on GPUs of one kind that differ, compared as if they had been taken on one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mctskernel.core.evaluation import Bottleneck, Cause, Diagnosis, Evaluation, Outcome, Source, Timing
from mctskernel.profiling.guardrails import beside, timings_beside
from mctskernel.profiling.reward import composite, fastest_first, gain_of, relief

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


def test_without_a_baseline_beside_both_times_stay_as_they_are() -> None:
    alone = Timing("n=0", 1e-3, 1e-3, 1e-3)
    assert beside(alone, ROOT.timings[0]) is alone
    assert beside(ROOT.timings[0], alone) is ROOT.timings[0]
    other = replace(ROOT, timings=(alone,))
    assert timings_beside(ROOT, other) == ROOT.timings
