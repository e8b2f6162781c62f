import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mctskernel.core.evaluation import (
    Bottleneck,
    Cause,
    Diagnosis,
    Evaluation,
    Outcome,
    Resources,
    Source,
    Timing,
)
from mctskernel.profiling.guardrails import NOISE
from mctskernel.profiling.reward import FAILURES, composite, fastest_first, time_alone

SECONDS = st.floats(1e-7, 10.0)
SHARES = st.floats(0.0, 1.0)


def timed(*seconds: float, share: float | None = None, spills: int = 0, quarantine: str = "") -> Evaluation:
    causes = () if share is None else (Cause(Bottleneck.DRAM_BANDWIDTH, share, "DRAM."),)
    return Evaluation(
        Outcome.OK,
        Source.MODELLED,
        timings=tuple(Timing(f"shape {i}", s, s, s) for i, s in enumerate(seconds)),
        resources=(Resources("k", 32, 0, spill_store_bytes=spills),),
        diagnosis=Diagnosis(causes),
        quarantine=quarantine,
    )


ROOT = timed(1e-3)


@given(
    seconds=st.floats(5e-4, 2e-3),
    parent_seconds=SECONDS,
    parent_share=SHARES,
    shares=st.tuples(SHARES, SHARES),
    spills=st.tuples(st.integers(0, 64), st.integers(0, 64)),
)
def test_no_bonus_or_penalty_outranks_a_gain_beyond_the_noise(
    seconds: float,
    parent_seconds: float,
    parent_share: float,
    shares: tuple[float, float],
    spills: tuple[int, int],
) -> None:
    parent = timed(parent_seconds, share=parent_share)
    slow = timed(seconds, share=shares[0], spills=spills[0])
    fast = timed(seconds / (1 + NOISE), share=shares[1], spills=spills[1])
    assert composite(fast, parent, ROOT).reward > composite(slow, parent, ROOT).reward


@pytest.mark.parametrize("outcome", FAILURES)
def test_every_failure_is_below_the_slowest_kernel_that_works(outcome: Outcome) -> None:
    failed = composite(Evaluation(outcome, Source.MODELLED), ROOT, ROOT)
    slowest = composite(timed(1e6, spills=8), ROOT, ROOT)
    assert failed.reward == FAILURES[outcome] < slowest.reward
    assert failed.speedup == 0


def test_what_could_not_be_verified_is_worth_what_its_parent_is() -> None:
    unknown = Evaluation(Outcome.UNVERIFIABLE, Source.MODELLED)
    parent = timed(5e-4)
    assert composite(unknown, parent, ROOT).reward == time_alone(parent, None, ROOT).reward
    assert composite(unknown, None, ROOT).reward == composite(unknown, unknown, ROOT).reward == 0
    assert composite(unknown, parent, ROOT).speedup == 0
    assert set(Outcome) - FAILURES.keys() == {Outcome.OK, Outcome.UNVERIFIABLE}


def test_a_quarantined_kernel_gets_nothing_for_its_time() -> None:
    found = composite(timed(1e-9, quarantine="too fast"), ROOT, ROOT)
    assert found.reward < composite(timed(1e3), ROOT, ROOT).reward
    assert found.speedup == 0
    assert "time" not in found.terms


def test_the_speedup_is_the_geometric_mean_over_the_shapes() -> None:
    root = timed(1.0, 1.0)
    assert composite(timed(0.5, 0.125), None, root).speedup == pytest.approx(4.0)
    # One shape driven to zero is worth no more than its share.
    assert composite(timed(1.0, 0.25), None, root).speedup == pytest.approx(2.0)


def test_counters_decide_between_equals_alone() -> None:
    parent = timed(1e-3, share=0.8)
    relieved, not_relieved = (
        composite(timed(1e-3, share=share), parent, ROOT).reward for share in (0.1, 0.8)
    )
    spilling = composite(timed(1e-3, share=0.8, spills=8), parent, ROOT).reward
    assert spilling < not_relieved < relieved
    # A gain of a twentieth of the noise is worth more than any relief.
    faster = composite(timed(1e-3 / (1 + NOISE / 20), share=0.8), parent, ROOT).reward
    assert faster > relieved


def test_the_answer_is_chosen_by_time_alone() -> None:
    evaluations = [
        (0, ROOT),
        (1, timed(5e-4, spills=64)),
        (2, timed(5.0001e-4)),
        (3, timed(1e-9, quarantine="too fast")),
        (4, Evaluation(Outcome.WRONG_RESULT, Source.MODELLED)),
        (5, timed(5e-4)),
    ]
    assert fastest_first(evaluations, ROOT) == [1, 5, 2, 0]


# Times taken on GPUs of one kind that differ, compared as if they had been taken on one.

BASELINES = (100e-6, 300e-6)  # seconds of the starting kernel at two shapes, on the first GPU

SPEEDUPS = st.tuples(st.floats(0.5, 4.0), st.floats(0.5, 4.0))
FACTORS = st.floats(0.8, 1.25)


def on_gpu(speedups: tuple[float, ...], factor: float = 1.0) -> Evaluation:
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
    return Evaluation(Outcome.OK, Source.MEASURED, timings=timings)


FIRST = on_gpu((1.0, 1.0))


@given(st.lists(st.tuples(SPEEDUPS, FACTORS), min_size=2, max_size=8))
def test_the_order_of_kernels_is_that_of_one_gpu_whatever_the_gpus_that_timed_them(
    kernels: list[tuple[tuple[float, float], float]],
) -> None:
    on_one = [(number, on_gpu(speedups)) for number, (speedups, _) in enumerate(kernels)]
    on_many = [(number, on_gpu(speedups, factor)) for number, (speedups, factor) in enumerate(kernels)]
    gains = {number: math.fsum(map(math.log, kernels[number][0])) for number in range(len(kernels))}

    order = fastest_first(on_many, FIRST)

    # Kernels that are equally fast may come in either order.
    assert [gains[each] for each in order] == pytest.approx(
        [gains[each] for each in fastest_first(on_one, FIRST)]
    )
