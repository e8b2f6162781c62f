"""How much faster: medians of calls that took turns, without the way to the host and back, and how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mctskernel.core.evaluation import Timing
from mctskernel.core.task import Array

RESAMPLES = 1000
CONFIDENCE = 0.95
SLOWED = 0.9
"""Under this ratio of the baseline's times, before and beside the candidate, the candidate is taken to disturb it."""


@dataclass(frozen=True)
class Turns:
    """Seconds of each round, as the referee's clock saw them; the quiet ones are from before the candidate lived."""

    candidate: Sequence[float]
    baseline: Sequence[float]
    echo: Sequence[float]
    quiet_baseline: Sequence[float]
    quiet_echo: Sequence[float]


@dataclass(frozen=True)
class Speedup:
    """The baseline's time over the candidate's, both without the round trip, and its interval.

    `at_least` charges the candidate the whole round trip and the baseline none, so that it holds whatever a candidate
    may have done to shorten its way. `doubt` says why none of this is believed, empty if it is.
    """

    ratio: float
    low: float
    high: float
    at_least: float
    round_trip_seconds: float
    timing: Timing
    flags: tuple[str, ...] = ()
    doubt: str = ""


def compared(turns: Turns, label: str) -> Speedup:
    """The speed-up of so many rounds; the interval is a percentile bootstrap over rounds."""
    ours, baseline, echo = (np.asarray(each) for each in (turns.candidate, turns.baseline, turns.echo))
    baseline, slower = _undisturbed(baseline, turns.quiet_baseline)
    echo, _ = _undisturbed(echo, turns.quiet_echo)
    flags = (f"The reference ran {slower:.0%} slower beside this module than before it.",) if slower else ()
    rounds = np.random.default_rng(0).integers(0, len(ours), (RESAMPLES, len(ours)))
    trip = np.median(echo[rounds], axis=1)
    net = np.median(ours[rounds], axis=1) - trip
    net_baseline = np.median(baseline[rounds], axis=1) - trip
    seconds, round_trip = float(np.median(ours) - np.median(echo)), float(np.median(echo))
    baseline_seconds = float(np.median(baseline)) - round_trip
    low_net, high_net = _interval(net)
    timing = Timing(label, seconds, low_net, high_net, tuple(turns.candidate), baseline_seconds)
    at_least = _interval(net_baseline / (net + trip))[0]
    doubt = _doubt(net, net_baseline, round_trip)
    if doubt:
        return Speedup(0.0, 0.0, 0.0, max(at_least, 0.0), round_trip, timing, flags, doubt)
    low, high = _interval(net_baseline / net)
    return Speedup(baseline_seconds / seconds, low, high, at_least, round_trip, timing, flags)


def _undisturbed(beside: Array, quiet: Sequence[float]) -> tuple[Array, float]:
    """Times as they would be without the candidate, and how much slower they were, as a fraction.

    What a candidate that can't be stopped does to others, with work of its own on the GPU, say, must not gain it
    anything.
    """
    ratio = float(np.median(quiet) / np.median(beside))
    return (beside * ratio, 1 / ratio - 1) if ratio < SLOWED else (beside, 0.0)


def _doubt(net: Array, net_baseline: Array, round_trip: float) -> str:
    for name, draws in (("module", net), ("reference", net_baseline)):
        low, high = _interval(draws)
        if low <= 0 or high - low > float(np.median(draws)):
            return (
                f"The {name} is too short to be told apart from the round trip of {round_trip * 1e6:.0f} µs to its "
                "process: give it more to do."
            )
    return ""


def _interval(draws: Array) -> tuple[float, float]:
    low, high = np.quantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)
