"""Whether every timed run did the work that its time stands for.

One run on each variant of the inputs is checked by its values. Of the others there are digests of every byte that they
wrote and of every byte that they must not change, and times by two clocks.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from mctskernel.core.evaluation import Check, Guard
from mctskernel.core.task import shape_label
from mctskernel.profiling.gpu.arenas import Arena
from mctskernel.profiling.gpu.protocol import Batch, Timed, TimedRun

REMEMBERED = 1.25
"""How many times as long a kernel takes on new inputs as on the same ones again, if it has cached something."""

CLOCK_SECONDS = 2e-6  # the noise of a single run, whatever its length: clock resolution and launch

CLOCKS_APART = 0.1
"""The fraction by which the host's clock and the GPU's may differ over most batches of runs."""

BATCH_SECONDS = 2e-3  # how much longer a batch may take on the host than on the GPU: launches and waiting


@dataclass(frozen=True)
class Violation:
    """Why timed runs are refused, as the end of a sentence about a shape, and the guard that noticed."""

    guard: Guard
    sentence: str


def find_violation(timed: Timed) -> Violation | None:
    """What is wrong with timed runs whatever their outputs are; None when nothing is."""
    if timed.overrun:
        return Violation(Guard.GUARD_BYTES, timed.overrun)
    if spoiled := sum(not run.inputs_kept for run in timed.runs):
        sentence = f"an input was changed in place by {spoiled} of {len(timed.runs)} timed runs."
        return Violation(Guard.UNTOUCHED_INPUTS, sentence)
    for sentence in (remembered(timed.runs), clocks_apart(timed.batches)):
        if sentence:
            return Violation(Guard.GPU_TIME, sentence)
    return None


def count_mismatches(timed: Timed) -> int:
    """How many timed runs left other bytes than the checked run on the same inputs."""
    return sum(run.outputs != timed.fetched[run.variant] for run in timed.runs)


def clocks_apart(batches: tuple[Batch, ...]) -> str:
    """A sentence about clocks that disagree in most batches; empty when they don't. Others on the GPU do that, too."""
    if not batches:
        return ""
    excess = statistics.median(
        abs(each.host_seconds - each.gpu_seconds) - CLOCKS_APART * each.host_seconds for each in batches
    )
    if excess <= BATCH_SECONDS:
        return ""
    host, gpu = (sum(getattr(each, name) for each in batches) for name in ("host_seconds", "gpu_seconds"))
    return f"its runs took {host * 1e3:.1f} ms by the host's clock and {gpu * 1e3:.1f} ms by the GPU's."


def refused_check(arena: Arena, sentence: str, guard: Guard) -> Check:
    """A failed check of an arena's case; `sentence` is the end of its message."""
    case = arena.case
    message = f"At {case.label} (seed {case.seed}), {sentence}"
    return Check(
        shape_label(arena.shape), case.seed, passed=False, error=float("inf"), message=message, guard=guard
    )


def remembered(runs: tuple[TimedRun, ...]) -> str:
    """A sentence about a kernel that is faster on inputs that it has seen; empty for any other.

    The first variant, on which a kernel is still cold, doesn't count. A hiccup may fall on one of the first runs of the
    others, hardly on all.
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
