"""The last gate: what is asked of a kernel before it is called best, at what was held out from the search."""

from __future__ import annotations

import math
from collections.abc import Iterator

from mctskernel.core.evaluation import Evaluation, Source, Timing
from mctskernel.profiling.guardrails import LAUNCH_SECONDS, NOISE
from mctskernel.profiling.model.uncertainty import log_ratio_sigma


def refusal(evaluation: Evaluation, root: Evaluation) -> str:
    """Why a kernel is not the answer, as a sentence; empty when it passes.

    `evaluation` is of the held-out shapes, its times beside the baseline's; `root` is the baseline's in the search.
    """
    if not evaluation.ok:
        return f"{evaluation.outcome}: {evaluation.message}"
    if evaluation.quarantine:
        return evaluation.quarantine
    return " ".join(regressions(evaluation, root))


def regressions(evaluation: Evaluation, root: Evaluation) -> Iterator[str]:
    """Each held-out shape at which the kernel is slower than the baseline, in a sentence.

    Slower by more than the noise, than what one launch costs, and of modelled times than the model's uncertainty.
    """
    for timing in evaluation.timings:
        baseline = timing.baseline_seconds
        if baseline is None or timing.low - baseline <= LAUNCH_SECONDS:
            continue
        loss = math.log(timing.low / baseline)
        if loss > _uncertainty(evaluation, root):
            yield (
                f"At {timing.shape}, a shape that no search sees, it takes {_microseconds(timing)} and the baseline "
                f"{baseline * 1e6:.1f} us: {timing.seconds / baseline:.2f} times as long."
            )


def _uncertainty(evaluation: Evaluation, root: Evaluation) -> float:
    """The logarithm of a ratio of times that means nothing yet."""
    if evaluation.source is Source.MODELLED:
        return log_ratio_sigma(evaluation.terms, root.terms)
    return math.log1p(NOISE)


def _microseconds(timing: Timing) -> str:
    return f"{timing.seconds * 1e6:.1f} us"
