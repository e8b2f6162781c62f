"""Rewards: a number for an evaluation, stored with its separate terms.

The default is the composite:

    ok             clip(log(baseline / time), -1, 7) + relief - penalties
    unverifiable   the time term of its parent: nothing is known of it
    not ok         a fixed number by outcome, below every ok one

The time is the main term. Relief and penalties together are far smaller than the reward of a gain of
`guardrails.NOISE` in time, so they order kernels that are equally fast and never outrank a real gain.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from mctskernel.core.evaluation import Bottleneck, Evaluation, Outcome, Score, Source, Timing
from mctskernel.profiling.guardrails import NOISE, beside, slower_shapes, timings_beside
from mctskernel.profiling.model.price import log_ratio_sigma

SLOWEST = -1.0  # kernels more than e times slower than the baseline all get the same

FASTEST = 7.0  # over a thousand times faster

TIE = 0.01 * math.log1p(NOISE)  # what decides between kernels that are equally fast, and nothing else

RELIEF = TIE
"""The most that relieving the parent's bottleneck earns.

In steps measured on an H100, no counter predicts the descendants' gain once the child's time is known
(docs/results/counter_evidence_h100.md), and searches with larger weights did neither better nor worse
(docs/results/reward_value_h100.md).
"""

SPILLS = TIE  # what spilling registers costs

REGRESSION = 0.125 * math.log1p(NOISE)  # what being slower than the parent at a shape costs

FAILURES = {
    # Nearly right: it builds and runs, and one barrier may mend it.
    Outcome.RACE: -1.1,
    Outcome.WRONG_RESULT: -1.2,
    # It ran, and left its arrays.
    Outcome.CRASH: -1.3,
    # It builds, with a launch that the GPU refuses.
    Outcome.LAUNCH_ERROR: -1.4,
    Outcome.BUILD_ERROR: -1.5,
    # Nothing to learn from, and the most expensive.
    Outcome.TIMEOUT: -1.6,
    Outcome.REJECTED: -1.6,
    Outcome.DUPLICATE: -1.6,
}
"""The nearer to a working kernel, the higher; all below the lowest reward of an ok kernel."""

QUARANTINED = FAILURES[Outcome.REJECTED]

Key = TypeVar("Key", bound=Hashable)


def composite(evaluation: Evaluation, parent: Evaluation | None, root: Evaluation) -> Score:
    """Add up time, relief of the parent's bottleneck, and penalties; a quarantined kernel is rewarded as a failure."""
    return _refused(evaluation, parent, root) or _scored(
        evaluation,
        root,
        relief=_relief(evaluation, parent),
        spills=-SPILLS if _spills(evaluation) else 0.0,
        regression=-REGRESSION if slower_shapes(evaluation, parent) else 0.0,
    )


def time_alone(evaluation: Evaluation, parent: Evaluation | None, root: Evaluation) -> Score:
    """Take the composite's time term alone, without counters and resources."""
    return _refused(evaluation, parent, root) or _scored(evaluation, root)


def unguarded(evaluation: Evaluation, parent: Evaluation | None, root: Evaluation) -> Score:
    """Take the composite without guardrails, for ablations: the final validation applies them all the same."""
    return _failed(evaluation, parent, root) or _scored(
        evaluation, root, relief=_relief(evaluation, parent), spills=-SPILLS if _spills(evaluation) else 0.0
    )


Reward = Callable[[Evaluation, Evaluation | None, Evaluation], Score]
"""Takes an evaluation, its parent's (None for the root) and the root's, which is the baseline.

Without a root that ran an ok kernel gets 0 for its time.
"""

DEFAULT = "composite"  # of the registered rewards (`mctskernel.registry`)


def _refused(evaluation: Evaluation, parent: Evaluation | None, root: Evaluation) -> Score | None:
    if evaluation.ok and evaluation.quarantine:
        return Score(QUARANTINED, 0.0, {"quarantine": QUARANTINED})
    return _failed(evaluation, parent, root)


def _failed(evaluation: Evaluation, parent: Evaluation | None, root: Evaluation) -> Score | None:
    if evaluation.ok:
        return None
    if evaluation.outcome is Outcome.UNVERIFIABLE:
        known = parent is not None and parent.ok and not parent.quarantine
        time = _scored(parent, root).reward if parent is not None and known else 0.0
        return Score(time, 0.0, {"unverified": time})
    level = FAILURES[evaluation.outcome]
    return Score(level, 0.0, {"failure": level})


def _scored(evaluation: Evaluation, root: Evaluation, **others: float) -> Score:
    gain = log_speedup(evaluation, root)
    time = min(max(gain, SLOWEST), FASTEST) if gain is not None else 0.0
    terms = {"time": time, **others}
    return Score(sum(terms.values()), math.exp(gain) if gain is not None else 0.0, terms)


def log_speedup(evaluation: Evaluation, root: Evaluation) -> float | None:
    """Mean over shapes of log(baseline / time), the baseline interleaved or the root's; None without one."""
    baselines = {timing.shape: timing.seconds for timing in root.timings}
    ratios = []
    for timing in evaluation.timings:
        baseline = timing.baseline_seconds or baselines.get(timing.shape)
        if baseline is None:
            return None
        ratios.append(math.log(baseline / timing.seconds))
    return statistics.fmean(ratios) if ratios else None


def _relief(evaluation: Evaluation, parent: Evaluation | None) -> float:
    """`RELIEF` times the fraction of the parent's first bottleneck, in seconds of its time, that is gone.

    An edit that relieves it without gaining time yet may be the step before one that does.
    """
    if (
        parent is None
        or parent.diagnosis is None
        or not parent.diagnosis.causes
        or evaluation.diagnosis is None
    ):
        return 0.0
    cause = parent.diagnosis.causes[0]
    before = cause.share * _seconds(parent.timings)
    after = _share(evaluation, cause.bottleneck) * _seconds(timings_beside(evaluation, parent))
    return RELIEF * min(max((before - after) / before, 0.0), 1.0) if before > 0 else 0.0


def is_eligible(evaluation: Evaluation) -> bool:
    """Return whether a kernel may be the answer, subject to the final validation: ok, timed, and not quarantined."""
    return evaluation.ok and not evaluation.quarantine and bool(evaluation.timings)


def fastest_first(evaluations: Iterable[tuple[Key, Evaluation]], root: Evaluation) -> list[Key]:
    """Return the keys of the eligible evaluations by time alone; earlier ones first among equals."""
    gains = [(key, log_speedup(each, root)) for key, each in evaluations if is_eligible(each)]
    known = [(key, gain) for key, gain in gains if gain is not None]
    return [key for key, _ in sorted(known, key=lambda pair: -pair[1])]


def are_tied(first: Evaluation, second: Evaluation) -> bool:
    """Return whether two modelled times differ by less than their ratio's uncertainty; measured ones never tie."""
    if first.source is not Source.MODELLED or second.source is not Source.MODELLED:
        return False
    gain = log_speedup(first, second)
    return gain is not None and abs(gain) <= log_ratio_sigma(first.terms, second.terms)


def _seconds(timings: Iterable[Timing]) -> float:
    return math.fsum(timing.seconds for timing in timings)


def _share(evaluation: Evaluation, bottleneck: Bottleneck) -> float:
    causes = evaluation.diagnosis.causes if evaluation.diagnosis is not None else ()
    return next((cause.share for cause in causes if cause.bottleneck is bottleneck), 0.0)


def _spills(evaluation: Evaluation) -> bool:
    return any(found.spill_store_bytes or found.spill_load_bytes for found in evaluation.resources)


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
    """Return what `after` gains on `before`: the mean over the shapes of log(time before / time after).

    Times are compared beside each other (`guardrails.beside`). The noise of measured times is `guardrails.NOISE` or, if
    that is more, what their intervals allow; that of modelled ones is one standard deviation of their ratio
    (`model.price`). None unless both times are eligible for rewards, of one source and of the same shapes.
    """
    if not (is_eligible(after) and is_eligible(before)) or after.source is not before.source:
        return None
    pairs = list(zip(before.timings, after.timings, strict=False))
    if [first.shape for first in before.timings] != [second.shape for second in after.timings]:
        return None
    log = statistics.fmean(math.log(first.seconds / beside(second, first).seconds) for first, second in pairs)
    if after.source is Source.MODELLED:
        return Gain(log, max(math.log1p(NOISE), log_ratio_sigma(before.terms, after.terms)))
    spread = statistics.fmean(_half_width(first) + _half_width(second) for first, second in pairs)
    return Gain(log, max(math.log1p(NOISE), spread))


def _half_width(timing: Timing) -> float:
    """The larger part of the interval on one side of the median, as a logarithm; infinite for no proper interval."""
    if not 0 < timing.low <= timing.seconds <= timing.high:
        return math.inf
    return max(math.log(timing.high / timing.seconds), math.log(timing.seconds / timing.low))
