"""Gains: how much faster one evaluation is than another, and how much of that may be noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mctskernel.core.evaluation import Evaluation, Source, Timing
from mctskernel.profiling.comparable import beside
from mctskernel.profiling.guardrails import NOISE
from mctskernel.profiling.model.uncertainty import log_ratio_sigma
from mctskernel.profiling.reward import is_eligible


@dataclass(frozen=True)
class Gain:
    """The logarithm of a time over another one's, and how far from 0 it may be by noise alone."""

    log: float
    noise: float

    @property
    def is_certain(self) -> bool:
        """Whether the second kernel is faster by more than the noise."""
        return self.log > self.noise


def gain_of(after: Evaluation, before: Evaluation) -> Gain | None:
    """What `after` gains on `before`: the mean over the shapes of log(time before / time after).

    Times are compared beside each other (`profiling.comparable`). The noise of measured times
    is `guardrails.NOISE` or, if that is more, what their intervals allow; that of modelled ones is one standard
    deviation of their ratio (`model.uncertainty`). None unless both times are believed, of one source and of the same
    shapes.
    """
    if not (is_eligible(after) and is_eligible(before)) or after.source is not before.source:
        return None
    pairs = list(zip(before.timings, after.timings, strict=False))
    if [first.shape for first in before.timings] != [second.shape for second in after.timings]:
        return None
    log = math.fsum(math.log(first.seconds / beside(second, first).seconds) for first, second in pairs) / len(
        pairs
    )
    if after.source is Source.MODELLED:
        return Gain(log, max(math.log1p(NOISE), log_ratio_sigma(before.terms, after.terms)))
    spread = math.fsum(_half_width(first) + _half_width(second) for first, second in pairs) / len(pairs)
    return Gain(log, max(math.log1p(NOISE), spread))


def _half_width(timing: Timing) -> float:
    """The larger part of the interval on one side of the median, as a logarithm; infinite for no proper interval."""
    if not 0 < timing.low <= timing.seconds <= timing.high:
        return math.inf
    return max(math.log(timing.high / timing.seconds), math.log(timing.seconds / timing.low))
