"""Feedback: what a model is told of how a kernel does."""

from __future__ import annotations

import enum

from mctskernel.core.evaluation import Evaluation
from mctskernel.core.proposer import ProposalRequest
from mctskernel.edits.llm.wording import (
    cause_text,
    counter_text,
    plain,
    resources_text,
    speedup_text,
    timing_text,
)

MOST_CAUSES = 4
MOST_TIMINGS = 24
MOST_COUNTERS = 64


class Feedback(enum.StrEnum):
    """What a model is told beside a kernel's times, and what stands out about them.

    NONE is nothing more; COUNTERS the counters by their names, as they were read; DIAGNOSIS what binds the kernel, and
    what the compiler says of it, in sentences.
    """

    NONE = "none"
    COUNTERS = "counters"
    DIAGNOSIS = "diagnosis"


def evidence(request: ProposalRequest, feedback: Feedback) -> list[str]:
    """How the request's kernel does, in sentences."""
    evaluation = request.evaluation
    return [
        *(timing_text(timing, str(evaluation.source)) for timing in evaluation.timings[:MOST_TIMINGS]),
        speedup_text(request.speedup, request.best_speedup),
        *_TOLD[feedback](evaluation),
        *(plain(flag) for flag in evaluation.flags[:MOST_CAUSES]),
    ]


def _nothing(_: Evaluation) -> list[str]:
    return []


def _counters(evaluation: Evaluation) -> list[str]:
    found = sorted(evaluation.counters.items())[:MOST_COUNTERS]
    return [counter_text(name, value) for name, value in found]


def _diagnosis(evaluation: Evaluation) -> list[str]:
    """What binds a kernel, and what the compiler said of it."""
    diagnosis = evaluation.diagnosis
    causes = diagnosis.causes[:MOST_CAUSES] if diagnosis is not None else ()
    explanation = plain(diagnosis.explanation) if diagnosis is not None else ""
    return [
        *([explanation] if explanation else []),
        *map(cause_text, causes),
        *map(resources_text, evaluation.resources[:MOST_CAUSES]),
    ]


_TOLD = {Feedback.NONE: _nothing, Feedback.COUNTERS: _counters, Feedback.DIAGNOSIS: _diagnosis}
