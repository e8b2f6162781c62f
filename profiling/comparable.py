"""Times that were taken apart, made comparable: on several GPUs of one kind, or on one whose clock has drifted.

Two GPUs of one kind aren't equally fast, and one GPU isn't from hour to hour. The starting kernel is timed interleaved
with every other one, so what makes both slower cancels out of their ratio. Times are stored as they were measured, and
times of two kernels are compared through this module alone.
"""

from __future__ import annotations

import math
from dataclasses import replace

from mctskernel.core.evaluation import Evaluation, Timing


def beside(timing: Timing, reference: Timing) -> Timing:
    """A timing as it would be where and when another one at its shape was taken.

    It is scaled by the starting kernel's times beside the two, whose own uncertainty makes its interval wider; it is
    unchanged where that wasn't timed beside both.
    """
    if not timing.baseline_seconds or not reference.baseline_seconds:
        return timing
    factor = reference.baseline_seconds / timing.baseline_seconds
    spreads = timing.baseline_spread or 0.0, reference.baseline_spread or 0.0
    # Three medians, whose errors have nothing to do with each other.
    below = math.hypot(timing.seconds - timing.low, *(spread * timing.seconds for spread in spreads))
    above = math.hypot(timing.high - timing.seconds, *(spread * timing.seconds for spread in spreads))
    return replace(
        timing,
        seconds=timing.seconds * factor,
        low=max(timing.seconds - below, 0.0) * factor,
        high=(timing.seconds + above) * factor,
        samples=tuple(sample * factor for sample in timing.samples),
        baseline_seconds=reference.baseline_seconds,
    )


def timings_beside(evaluation: Evaluation, reference: Evaluation) -> tuple[Timing, ...]:
    """An evaluation's timings, each as it would be beside the reference's at its shape, where there is one."""
    theirs = {timing.shape: timing for timing in reference.timings}
    return tuple(
        beside(timing, theirs[timing.shape]) if timing.shape in theirs else timing
        for timing in evaluation.timings
    )
