"""A kernel's times beside the baseline's, where the two were not measured in turns."""

from __future__ import annotations

from dataclasses import replace

from mctskernel.core.evaluation import Evaluation


def beside_baseline(evaluation: Evaluation, baseline: Evaluation) -> Evaluation:
    """The evaluation with the baseline's time at each shape at which both were timed."""
    seconds = {timing.shape: timing.seconds for timing in baseline.timings}
    timings = (replace(timing, baseline_seconds=seconds.get(timing.shape)) for timing in evaluation.timings)
    return replace(evaluation, timings=tuple(timings))
