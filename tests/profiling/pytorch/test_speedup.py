"""What is made of the referee's clock."""

from __future__ import annotations

import numpy as np
import pytest

from mctskernel.profiling.pytorch.speedup import Turns, compared

TRIP = 100e-6


def turns(
    ours: float, baseline: float, *, noise: float = 1e-6, beside: float = 1.0, trip: float = TRIP
) -> Turns:
    """Rounds of a module and a baseline of so many seconds; beside the module others take `beside` times as long."""
    rng = np.random.default_rng(0)

    def around(seconds: float) -> list[float]:
        return list(seconds + rng.normal(0.0, noise, 30))

    return Turns(
        around(TRIP + ours),
        around(beside * (trip + baseline)),
        around(beside * trip),
        around(trip + baseline),
        around(trip),
    )


def test_the_round_trip_is_taken_off_both() -> None:
    found = compared(turns(200e-6, 600e-6), "")
    assert found.ratio == pytest.approx(3.0, rel=0.02)
    assert found.low <= 3.0 <= found.high
    assert found.timing.seconds == pytest.approx(200e-6, rel=0.02)
    assert found.timing.baseline_seconds == pytest.approx(600e-6, rel=0.02)


def test_what_is_claimed_at_least_charges_the_module_its_whole_way() -> None:
    found = compared(turns(200e-6, 600e-6), "")
    assert found.at_least == pytest.approx(600 / 300, rel=0.02)


def test_a_module_that_does_away_with_its_way_gains_no_more_than_that() -> None:
    honest = compared(turns(200e-6, 600e-6), "")
    shortened = compared(turns(200e-6 - TRIP / 2, 600e-6), "")
    assert shortened.ratio > 1.3 * honest.ratio
    assert shortened.at_least <= 600 / 250 * 1.02


def test_a_module_shorter_than_the_noise_of_the_way_is_not_told_a_time() -> None:
    found = compared(turns(1e-6, 600e-6, noise=20e-6), "")
    assert "too short" in found.doubt
    assert found.ratio == 0.0


def test_a_reference_that_is_too_short_is_told_so() -> None:
    assert "The reference is too short" in compared(turns(600e-6, 1e-6, noise=20e-6), "").doubt


def test_a_module_that_slows_others_down_gains_nothing_by_it() -> None:
    found = compared(turns(600e-6, 600e-6, beside=4.0), "")
    assert found.ratio == pytest.approx(1.0, rel=0.05)
    assert "slower beside this module" in found.flags[0]


def test_a_machine_that_drifts_a_little_is_no_disturbance() -> None:
    assert not compared(turns(600e-6, 600e-6, beside=1.05), "").flags
