"""What timed runs are refused for, and what is let through."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import pytest

from mctskernel.core.evaluation import Guard
from mctskernel.profiling.gpu.accounting import count_mismatches, find_violation
from mctskernel.profiling.gpu.protocol import Batch, Timed, TimedRun

ORDER = (0, 0, 0, 1, 0, 1, 1, 0, 1, 0, 2, 2, 2, 2)
JUDGED = {0: 100, 1: 101, 2: 102}


@dataclass(frozen=True)
class Pace:
    """Seconds of a first run on inputs, and of further ones."""

    first: float
    again: float


def timed(pace: Pace, noise: float = 0.0, seed: int = 0) -> Timed:
    rng = np.random.default_rng(seed)
    seen: set[int] = set()
    runs = []
    for variant in ORDER:
        seconds = pace.again if variant in seen else pace.first
        runs.append(
            TimedRun(
                variant, seconds * (1 + noise * rng.standard_normal()), JUDGED[variant], inputs_kept=True
            )
        )
        seen.add(variant)
    samples = tuple(run.seconds for run in runs[2:])
    return Timed(samples, (1e-4,), tuple(runs), JUDGED, (Batch(0.0101, 0.01),) * 4)


HONEST = timed(Pace(1e-4, 1e-4))


def test_honest_runs_pass() -> None:
    assert find_violation(HONEST) is None
    assert count_mismatches(HONEST) == 0


@pytest.mark.parametrize("seconds", [2e-6, 4e-6, 1e-4, 0.1])
def test_noise_and_a_hiccup_on_a_first_run_are_let_through(seconds: float) -> None:
    for seed in range(200):
        noisy = timed(Pace(seconds, seconds), 0.05, seed)
        assert find_violation(noisy) is None
        at = 3 if seed % 2 else 10
        hiccup = msgspec.structs.replace(noisy.runs[at], seconds=3 * seconds)
        runs = (*noisy.runs[:at], hiccup, *noisy.runs[at + 1 :])
        assert find_violation(msgspec.structs.replace(noisy, runs=runs)) is None


@pytest.mark.parametrize("pace", [Pace(1e-5, 5e-6), Pace(1e-4, 7e-5), Pace(1e-2, 1e-3)])
def test_a_kernel_that_is_faster_on_what_it_has_seen_is_found(pace: Pace) -> None:
    found = find_violation(timed(pace, 0.02))
    assert found is not None
    assert found.guard is Guard.GPU_TIME
    assert "hasn't seen" in found.sentence


def test_one_run_that_changed_its_inputs_is_found() -> None:
    runs = (*HONEST.runs[:5], msgspec.structs.replace(HONEST.runs[5], inputs_kept=False), *HONEST.runs[6:])
    found = find_violation(msgspec.structs.replace(HONEST, runs=runs))
    assert found is not None
    assert (found.guard, "by 1 of 14 timed runs" in found.sentence) == (Guard.UNTOUCHED_INPUTS, True)


@pytest.mark.parametrize(
    ("batches", "refused"),
    [
        ((Batch(0.1, 0.099),) * 5, False),
        ((Batch(0.0011, 0.0001),) * 5, False),
        # The host was busy with something else, twice.
        ((Batch(0.5, 0.01),) * 2 + (Batch(0.0101, 0.01),) * 3, False),
        ((Batch(0.1, 0.01),) * 5, True),
        ((Batch(0.01, 0.1),) * 5, True),
    ],
)
def test_two_clocks_must_agree_over_most_batches(batches: tuple[Batch, ...], refused: bool) -> None:
    found = find_violation(msgspec.structs.replace(HONEST, batches=batches))
    assert (found is not None) == refused
    if found is not None:
        assert found.guard is Guard.GPU_TIME
