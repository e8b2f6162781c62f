from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
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
from mctskernel.profiling.reward import FAILURES, composite, fastest_first
from mctskernel.registry import find, names

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


@given(SECONDS, SECONDS)
def test_faster_is_never_worth_less(a: float, b: float) -> None:
    fast, slow = sorted((a, b))
    assert composite(timed(fast), None, ROOT).reward >= composite(timed(slow), None, ROOT).reward


@settings(deadline=None)
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


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.OK])
def test_every_failure_is_below_the_slowest_kernel_that_works(outcome: Outcome) -> None:
    failed = composite(Evaluation(outcome, Source.MODELLED), ROOT, ROOT)
    slowest = composite(timed(1e6, spills=8), ROOT, ROOT)
    assert failed.reward == FAILURES[outcome] < slowest.reward
    assert failed.speedup == 0


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


def test_a_baseline_measured_beside_the_kernel_goes_before_the_roots_time() -> None:
    timing = Timing("shape 0", 1e-3, 1e-3, 1e-3, baseline_seconds=3e-3)
    evaluation = Evaluation(Outcome.OK, Source.MEASURED, timings=(timing,))
    assert composite(evaluation, None, ROOT).speedup == pytest.approx(3.0)


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


def test_a_time_past_the_roofline_is_believed_by_the_unguarded_reward_alone() -> None:
    evaluation = timed(5e-4, quarantine="too fast")

    rewards = {
        name: reward(evaluation, None, ROOT).reward
        for name, reward in ((name, find("reward", name)) for name in names("reward"))
    }

    assert rewards["unguarded"] == pytest.approx(math.log(2))
    assert rewards["composite"] == rewards["time"] == FAILURES[Outcome.REJECTED]
