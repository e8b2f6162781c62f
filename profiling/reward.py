"""The reward: a number from an evaluation, stored with its separate terms.

    ok             clip(log(baseline / time), -1, 7) + relief - penalties
    not ok         a fixed number by outcome, below every ok one

The time is the main term. Relief and penalties together are worth half of what a gain of `guardrails.NOISE`
in time is, so they order kernels that are equally fast and never outrank a real gain.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from typing import TypeVar

from mctskernel.core.evaluation import Bottleneck, Evaluation, Outcome, Score, Source
from mctskernel.profiling.guardrails import NOISE, slower_shapes
from mctskernel.profiling.model.uncertainty import log_ratio_sigma

SLOWEST = -1.0
"""A kernel e times slower than the baseline is as bad as any; the clip keeps room for what is gained."""

FASTEST = 7.0
"""Over a thousand times faster."""

RELIEF = 0.25 * math.log1p(NOISE)
"""The most that relieving the parent's bottleneck earns."""

PENALTY = 0.25 * math.log1p(NOISE)
"""The most that remarks cost, together."""

FAILURES = {
    # Nearly right: it builds and runs, and one barrier may mend it.
    Outcome.RACE: -1.1,
    Outcome.WRONG_RESULT: -1.2,
    # It ran, and left its arrays.
    Outcome.CRASH: -1.3,
    # It builds, with a launch that the GPU refuses.
    Outcome.LAUNCH_ERROR: -1.4,
    Outcome.BUILD_ERROR: -1.5,
    # Nothing to learn from, and the dearest.
    Outcome.TIMEOUT: -1.6,
    Outcome.REJECTED: -1.6,
    Outcome.DUPLICATE: -1.6,
}
"""The nearer to a working kernel, the higher; all below the lowest that an ok kernel can get."""

QUARANTINED = FAILURES[Outcome.REJECTED]

Key = TypeVar("Key", bound=Hashable)


def score(evaluation: Evaluation, parent: Evaluation | None, root: Evaluation) -> Score:
    """The reward of an evaluation whose parent and root (the baseline) are given.

    A quarantined evaluation gets nothing for its time. Without a root that ran there is no speed-up, and an
    ok kernel gets 0 for its time.
    """
    if not evaluation.ok:
        level = FAILURES[evaluation.outcome]
        return Score(level, 0.0, {"failure": level})
    if evaluation.quarantine:
        return Score(QUARANTINED, 0.0, {"quarantine": QUARANTINED})
    gain = log_speedup(evaluation, root)
    terms = {
        "time": min(max(gain, SLOWEST), FASTEST) if gain is not None else 0.0,
        "relief": relief(evaluation, parent) if parent is not None else 0.0,
        "spills": -PENALTY / 2 if _spills(evaluation) else 0.0,
        "regression": -PENALTY / 2 if slower_shapes(evaluation, parent) else 0.0,
    }
    return Score(sum(terms.values()), math.exp(gain) if gain is not None else 0.0, terms)


def log_speedup(evaluation: Evaluation, root: Evaluation) -> float | None:
    """Mean over the shapes of log(baseline / time); None when a shape has no baseline.

    The baseline is the starting kernel measured interleaved with this one, or else the root's own time.
    """
    baselines = {timing.shape: timing.seconds for timing in root.timings}
    ratios = []
    for timing in evaluation.timings:
        baseline = timing.baseline_seconds or baselines.get(timing.shape)
        if baseline is None:
            return None
        ratios.append(math.log(baseline / timing.seconds))
    return math.fsum(ratios) / len(ratios) if ratios else None


def relief(evaluation: Evaluation, parent: Evaluation) -> float:
    """From 0 to `RELIEF`: how much of the parent's first bottleneck, in seconds of its time, is gone.

    An edit that relieves it without gaining time yet may be the step before one that does.
    """
    if parent.diagnosis is None or not parent.diagnosis.causes or evaluation.diagnosis is None:
        return 0.0
    cause = parent.diagnosis.causes[0]
    before = cause.share * _seconds(parent)
    after = _share(evaluation, cause.bottleneck) * _seconds(evaluation)
    return RELIEF * min(max((before - after) / before, 0.0), 1.0) if before > 0 else 0.0


def is_eligible(evaluation: Evaluation) -> bool:
    """Whether a kernel may be the answer, subject to the held-out check: ok, and its time is believed."""
    return evaluation.ok and not evaluation.quarantine and bool(evaluation.timings)


def fastest_first(evaluations: Iterable[tuple[Key, Evaluation]], root: Evaluation) -> list[Key]:
    """The keys of the eligible evaluations by time alone; earlier ones first among equals."""
    gains = [(key, log_speedup(each, root)) for key, each in evaluations if is_eligible(each)]
    known = [(key, gain) for key, gain in gains if gain is not None]
    return [key for key, _ in sorted(known, key=lambda pair: -pair[1])]


def are_tied(first: Evaluation, second: Evaluation) -> bool:
    """Whether two modelled times differ by less than the uncertainty of their ratio; measured ones never tie here."""
    if first.source is not Source.MODELLED or second.source is not Source.MODELLED:
        return False
    gain = log_speedup(first, second)
    return gain is not None and abs(gain) <= log_ratio_sigma(first.terms, second.terms)


def _seconds(evaluation: Evaluation) -> float:
    return math.fsum(timing.seconds for timing in evaluation.timings)


def _share(evaluation: Evaluation, bottleneck: Bottleneck) -> float:
    causes = evaluation.diagnosis.causes if evaluation.diagnosis is not None else ()
    return next((cause.share for cause in causes if cause.bottleneck is bottleneck), 0.0)


def _spills(evaluation: Evaluation) -> bool:
    return any(found.spill_store_bytes or found.spill_load_bytes for found in evaluation.resources)
