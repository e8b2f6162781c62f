"""A kernel's times beside the baseline's, where the two were not measured in turns."""

from __future__ import annotations

from dataclasses import replace

from mctskernel.core.evaluation import Evaluation


def beside_baseline(evaluation: Evaluation, baseline: Evaluation) -> Evaluation:
    """The evaluation with the baseline's time at each shape where both were timed, or a remark that there is none."""
    if not baseline.ok:
        remark = f"There is no time of the baseline to compare with: {baseline.message}"
        return replace(evaluation, flags=(*evaluation.flags, remark))
    seconds = {timing.shape: timing.seconds for timing in baseline.timings}
    timings = (replace(timing, baseline_seconds=seconds.get(timing.shape)) for timing in evaluation.timings)
    return replace(evaluation, timings=tuple(timings))
