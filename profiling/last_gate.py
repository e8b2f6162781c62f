"""The last gate: what is asked of a kernel before it is called best, at what was held out from the search."""

from __future__ import annotations

import math
from collections.abc import Iterator

from mctskernel.core.evaluation import Evaluation, Source, Timing
from mctskernel.profiling.comparable import beside
from mctskernel.profiling.guardrails import LAUNCH_SECONDS, NOISE
from mctskernel.profiling.model.uncertainty import log_ratio_sigma

REPEATED = 1.25
"""How many times as long as in the search a kernel may take where the search has timed it, chance aside."""


def refusal(evaluation: Evaluation, root: Evaluation, claimed: Evaluation) -> str:
    """Why a kernel is not the answer, as a sentence; empty when it passes.

    `evaluation` is of the held-out shapes, its times beside the baseline's; `root` is the baseline's in the search and
    `claimed` the kernel's own.
    """
    return disbelief(evaluation, claimed) or " ".join(regressions(evaluation, root))


def disbelief(evaluation: Evaluation, claimed: Evaluation) -> str:
    """Why a kernel's claim isn't believed, as a sentence; empty for one that is right and perhaps slow."""
    if not evaluation.ok:
        return f"{evaluation.outcome}: {evaluation.message}"
    return evaluation.quarantine or " ".join(unrepeated(evaluation, claimed))


def unrepeated(evaluation: Evaluation, claimed: Evaluation) -> Iterator[str]:
    """Each of the search's shapes at which a kernel is not as fast again as the search has found, in a sentence.

    So a kernel gains nothing by knowing the inputs that it is timed on, or the blocks that its price is made from.
    """
    found = {timing.shape: timing for timing in claimed.timings}
    for retimed in evaluation.retimed:
        then = found.get(retimed.shape)
        if then is None:
            continue
        now = beside(retimed, then)
        if now.low > REPEATED * then.seconds:
            yield (
                f"At {now.shape} it takes {_microseconds(now)} on other inputs and in other places of the grid, "
                f"and {_microseconds(then)} as the search has timed it: {now.seconds / then.seconds:.2f} times as long."
            )


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
