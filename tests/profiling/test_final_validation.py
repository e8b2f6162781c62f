"""What the last gate says of evaluations at held-out shapes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mctskernel.core.evaluation import Evaluation, Outcome, Source, Timing
from mctskernel.profiling.guardrails import refusal

ROOT = Evaluation(Outcome.OK, Source.MEASURED)


def timed(*timings: Timing, source: Source = Source.MEASURED) -> Evaluation:
    return Evaluation(Outcome.OK, source, timings=timings)


def timing(microseconds: float, baseline: float | None, spread: float = 0.0) -> Timing:
    seconds = microseconds * 1e-6
    return Timing(
        "n=77",
        seconds,
        seconds * (1 - spread),
        seconds * (1 + spread),
        baseline_seconds=None if baseline is None else baseline * 1e-6,
    )


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (timing(50, 100), "it is faster"),
        (timing(101.5, 100), "it differs by noise"),
        (timing(6, 2), "a launch costs more than the difference"),
        (timing(110, 100, spread=0.1), "its interval reaches the baseline"),
        (timing(110, None), "there is nothing to compare with"),
    ],
)
def test_it_passes(found: Timing, why: str) -> None:
    assert not refusal(timed(found), ROOT), why


def test_a_regression_at_any_held_out_shape_refuses() -> None:
    reason = refusal(timed(timing(50, 100), timing(130, 100)), ROOT)
    assert "n=77" in reason
    assert "130.0 us" in reason
    assert "1.30 times" in reason


def test_modelled_times_may_differ_by_more() -> None:
    root = replace(ROOT, source=Source.MODELLED)
    assert not refusal(timed(timing(105, 100), source=Source.MODELLED), root)
    assert refusal(timed(timing(300, 100), source=Source.MODELLED), root)


def test_what_failed_there_or_is_not_believed_is_refused_with_its_own_sentence() -> None:
    failed = Evaluation(Outcome.RACE, Source.MEASURED, "two warps met.")
    assert refusal(failed, ROOT) == "race: two warps met."
    assert refusal(replace(timed(timing(50, 100)), quarantine="too fast."), ROOT) == "too fast."
