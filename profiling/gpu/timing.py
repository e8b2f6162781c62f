"""How often to run, the median of repeated runs, and how sure it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from mctskernel.core.evaluation import Conditions, GpuState, Timing
from mctskernel.profiling.gpu.state import Monitor, Unmonitored, disturbance, is_slowed

RESAMPLES = 500
CONFIDENCE = 0.95

RETAKES = 3
"""How often a kernel's runs at one shape are thrown away and made again, because something disturbed the GPU."""

PAUSE_SECONDS = 0.05
"""How long to wait before that where the GPU was slowed down, which lasts."""

RETAKEN_SECONDS = 1.0
"""Runs that take longer together aren't made again: a request to time a kernel has its limit."""

Runs = Callable[[int], list[float]]
"""Runs something so many times and returns the seconds of each."""


@dataclass(frozen=True)
class Schedule:
    """How long to go on: about `seconds` of the candidate's time, within the fewest and the most runs.

    It stops before that once the median's interval is within `tightness` of the median on either side. The baseline
    takes its turns for a share of the candidate's time; at least `fewest_baseline` of them as far as they fit into
    `seconds`, and at least one.
    """

    seconds: float
    fewest: int = 5
    most: int = 100
    batch: int = 10
    tightness: float = 0.002
    baseline_share: float = 0.3
    fewest_baseline: int = 3


@dataclass(frozen=True)
class Turns:
    """Seconds of a candidate's runs and of a baseline's, and the GPU's state after the baseline's first ones and at
    the end.

    `dropped` runs of the candidate were thrown away before these; `disturbed` says why these would have been too.
    """

    samples: tuple[float, ...]
    baseline: tuple[float, ...]
    before: GpuState | None = None
    after: GpuState | None = None
    dropped: int = 0
    disturbed: str = ""

    @property
    def conditions(self) -> Conditions | None:
        """What is recorded of the GPU's state."""
        if self.before is None or self.after is None:
            return None
        return Conditions(self.before, self.after, self.dropped)

    def extended(self, samples: list[float], after: GpuState | None) -> Turns:
        """With further runs of the candidate's before its last state, which count unless something disturbed them."""
        if not self.disturbed and disturbance(self.before, after):
            return replace(self, after=after, dropped=self.dropped + len(samples))
        return replace(self, samples=(*self.samples, *samples), after=after)


_UNMONITORED = Unmonitored()


def interleaved(
    candidate: Runs, baseline: Runs, schedule: Schedule, monitor: Monitor = _UNMONITORED
) -> Turns:
    """Seconds of a candidate's runs and of a baseline's, in turns, so that what drifts drifts for both.

    Where something disturbed the GPU (`gpu.state`) they are all made again, `RETAKES` times at most. The last run is
    the candidate's.
    """
    # The first run after something else is slower, so it counts for nothing.
    pace = max(candidate(2)[-1], 1e-7)
    wanted = int(np.clip(schedule.seconds / pace, schedule.fewest, schedule.most))
    turns, dropped = _turns(candidate, baseline, schedule, monitor, wanted), 0
    for _ in range(RETAKES):
        if not turns.disturbed or sum(turns.samples) + sum(turns.baseline) > RETAKEN_SECONDS:
            break
        dropped += len(turns.samples)
        # A clock that has changed stays as it is while the GPU has work, and falls again while it has none.
        if is_slowed(turns.before) or is_slowed(turns.after):
            time.sleep(PAUSE_SECONDS)
        turns = _turns(candidate, baseline, schedule, monitor, wanted)
    return replace(turns, dropped=dropped)


def _turns(candidate: Runs, baseline: Runs, schedule: Schedule, monitor: Monitor, wanted: int) -> Turns:
    # The GPU is asked at the ends alone: its driver looks at it less often than these runs take.
    ours: list[float] = []
    theirs = baseline(1)
    if (more := min(int(schedule.seconds / max(theirs[0], 1e-7)), schedule.fewest_baseline) - 1) > 0:
        theirs += baseline(more)
    before = monitor.read()
    while len(ours) < wanted and not (len(ours) >= schedule.batch and _is_tight(ours, schedule.tightness)):
        if sum(theirs) < schedule.baseline_share * sum(ours):
            theirs += baseline(1)
        ours += candidate(min(schedule.batch, wanted - len(ours)))
    after = monitor.glance()
    return Turns(tuple(ours), tuple(theirs), before, after, disturbed=disturbance(before, after))


def timing(
    shape: str,
    samples: tuple[float, ...],
    baseline: tuple[float, ...],
    conditions: Conditions | None = None,
) -> Timing:
    """The median of the samples and its interval, in seconds, beside the baseline's median."""
    low, high = median_interval(samples)
    beside, (least, most) = float(np.median(baseline)), median_interval(baseline)
    return Timing(
        shape,
        seconds=float(np.median(samples)),
        low=low,
        high=high,
        samples=samples,
        baseline_seconds=beside,
        conditions=conditions,
        baseline_spread=max(beside - least, most - beside) / beside,
    )


def median_interval(samples: tuple[float, ...]) -> tuple[float, float]:
    """The percentile bootstrap interval of the median (Efron and Tibshirani 1993, chapter 13)."""
    # A fixed seed: the same samples always give the same interval.
    draws = np.random.default_rng(0).choice(np.asarray(samples), (RESAMPLES, len(samples)))
    low, high = np.quantile(np.median(draws, axis=1), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def _is_tight(samples: list[float], tightness: float) -> bool:
    low, high = median_interval(tuple(samples))
    middle = float(np.median(samples))
    return high - middle <= tightness * middle and middle - low <= tightness * middle
