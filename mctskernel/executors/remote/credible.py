"""Whether what a server says of a kernel can be: it may not break a search, whoever has written it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from mctskernel.core.evaluation import Evaluation, Source, Timing


def incredible(evaluation: Evaluation, source: Source) -> str:
    """Why an evaluation can't be one of a device with this source of numbers; empty if it can."""
    if evaluation.source is not source:
        return f"its numbers are {evaluation.source}, and the server's are {source}"
    for timing in (*evaluation.timings, *evaluation.retimed):
        if not all(_is_time(seconds) for seconds in _times(timing)):
            return "a time isn't a positive number of seconds"
    if not all(seconds >= 0 for seconds in evaluation.stage_seconds.values()):
        return "a stage took less than no time"
    if not all(map(math.isfinite, _numbers(evaluation))):
        return "a number isn't finite"
    return ""


def _times(timing: Timing) -> Iterable[float]:
    baseline = () if timing.baseline_seconds is None else (timing.baseline_seconds,)
    return (timing.seconds, timing.low, timing.high, *timing.samples, *baseline)


def _is_time(seconds: float) -> bool:
    return math.isfinite(seconds) and 0 < seconds < _LONGEST


def _numbers(evaluation: Evaluation) -> Iterable[float]:
    yield evaluation.cost_seconds
    for numbers in (evaluation.counters, evaluation.terms, evaluation.stage_seconds):
        yield from numbers.values()


_LONGEST = 1e6
"""Seconds; nothing that takes eleven days was ever timed."""
