"""Whether every timed run did what its time stands for.

One run on each variant of the inputs is judged by its values. Of the others there are digests, of every byte that they
wrote and of every byte that they had to leave alone, and times by two clocks.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from mctskernel.core.evaluation import Guard
from mctskernel.profiling.gpu.protocol import Batch, Timed, TimedRun

REMEMBERED = 1.25
"""How many times as long a kernel takes on inputs that it sees for the first time as on the same ones again, if it has
kept something of them."""

CLOCK_SECONDS = 2e-6
"""What a single run may differ by, whatever its length: what the clock and a launch make of it."""

CLOCKS_APART = 0.1
"""The fraction by which the host's clock and the GPU's may differ over most batches of runs."""

BATCH_SECONDS = 2e-3
"""What a batch may take on the host beside what it takes on the GPU: launches and waiting."""


@dataclass(frozen=True)
class Finding:
    """Why timed runs aren't accepted, as the end of a sentence about a shape, and what noticed."""

    guard: Guard
    sentence: str


def finding(timed: Timed) -> Finding | None:
    """What is wrong with timed runs whatever their outputs are; None when nothing is."""
    if timed.overrun:
        return Finding(Guard.GUARD_BYTES, timed.overrun)
    if spoiled := sum(not run.inputs_kept for run in timed.runs):
        sentence = f"an input was changed in place by {spoiled} of {len(timed.runs)} timed runs."
        return Finding(Guard.UNTOUCHED_INPUTS, sentence)
    for sentence in (_remembered(timed.runs), _apart(timed.batches)):
        if sentence:
            return Finding(Guard.GPU_TIME, sentence)
    return None


def strays(timed: Timed) -> int:
    """How many timed runs left other bytes than the run on the same inputs that was judged."""
    return sum(run.outputs != timed.judged[run.variant] for run in timed.runs)


def _remembered(runs: tuple[TimedRun, ...]) -> str:
    """A sentence about a kernel that is faster on what it has seen; empty for any other.

    Every variant but the first, on which a kernel is still cold, is seen for a first time. A hiccup may fall on one of
    these runs, hardly on all.
    """
    first, again = [], []
    for variant in dict.fromkeys(run.variant for run in runs[1:] if run.variant != runs[0].variant):
        seconds = [run.seconds for run in runs if run.variant == variant]
        if len(seconds) > 1:
            first.append(seconds[0])
            again.append(statistics.median(seconds[1:]))
    if not first or any(
        new < REMEMBERED * old + CLOCK_SECONDS for new, old in zip(first, again, strict=True)
    ):
        return ""
    return (
        f"it takes {first[-1] * 1e6:.1f} us on inputs that it hasn't seen, and {again[-1] * 1e6:.1f} us on the same "
        f"inputs again: it keeps something from run to run."
    )


def _apart(batches: tuple[Batch, ...]) -> str:
    """A sentence about clocks that disagree in most batches; empty when they don't."""
    if not batches:
        return ""
    excess = statistics.median(
        abs(each.host_seconds - each.gpu_seconds) - CLOCKS_APART * each.host_seconds for each in batches
    )
    if excess <= BATCH_SECONDS:
        return ""
    host, gpu = (sum(getattr(each, name) for each in batches) for name in ("host_seconds", "gpu_seconds"))
    return f"its runs took {host * 1e3:.1f} ms by the host's clock and {gpu * 1e3:.1f} ms by the GPU's."
