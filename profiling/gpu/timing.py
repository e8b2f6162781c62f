"""Timed runs of a candidate, interleaved with a baseline: how many, and what is done before and after each.

Before a run nothing of an earlier one is left anywhere that a kernel can read, and its inputs are one of several
variants, picked at random. After it, outside of what is timed, digests of its outputs and of its inputs are taken. One
variant is held back until the end, to see what the kernel does with inputs that it has never seen.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mctskernel.core.evaluation import Conditions, GpuState, Timing
from mctskernel.core.resampling import percentile_interval
from mctskernel.profiling.gpu.buffers import BoundPlan
from mctskernel.profiling.gpu.cuda_driver import DeviceBuffer, Stopwatch, synchronize
from mctskernel.profiling.gpu.device_kernels import Digests, Scrub
from mctskernel.profiling.gpu.protocol import Batch, TimedRun
from mctskernel.profiling.gpu.state import Monitor, Unmonitored, disturbance, is_slowed

RESAMPLES = 500

RETAKES = 3
"""How often a kernel's runs at one shape are discarded and repeated, because something disturbed the GPU."""

PAUSE_SECONDS = 0.05  # how long to wait before that where the GPU was slowed down

RETAKEN_SECONDS = 1.0
"""Runs that take longer together aren't repeated: a request to time a kernel has a time limit."""

Runs = Callable[[int], list[float]]
"""Runs a kernel the given number of times and returns the seconds of each run."""


@dataclass(frozen=True)
class Schedule:
    """How many runs: about `seconds` of the candidate's time, within `fewest` and `most` runs.

    Sampling stops early once the median's interval is within `tightness` of the median on either side. The baseline
    runs for a share of the candidate's time; at least `fewest_baseline` times as far as they fit into `seconds`, and
    at least once. A run that takes longer than `seconds` is enough, and if it takes more than `hopeless_seconds`, so
    that the candidate can't be among the best, the baseline doesn't run either.
    """

    seconds: float
    fewest: int = 3
    most: int = 100
    batch: int = 10
    tightness: float = 0.002
    baseline_share: float = 0.3
    fewest_baseline: int = 3
    hopeless_seconds: float = math.inf


@dataclass(frozen=True)
class Samples:
    """Seconds of a candidate's runs and of a baseline's, and the GPU's state after the baseline's first runs and at
    the end.

    `dropped` runs of the candidate were discarded before these; `disturbed` says why these should have been too.
    """

    samples: tuple[float, ...]
    baseline: tuple[float, ...]
    before: GpuState | None = None
    after: GpuState | None = None
    dropped: int = 0
    disturbed: str = ""

    @property
    def conditions(self) -> Conditions | None:
        """The GPU's state, as it is recorded; None where it is unknown."""
        if self.before is None or self.after is None:
            return None
        return Conditions(self.before, self.after, self.dropped)

    def extended(self, samples: list[float], after: GpuState | None) -> Samples:
        """With further runs of the candidate before the last state; they count unless something disturbed them."""
        if not self.disturbed and disturbance(self.before, after):
            return replace(self, after=after, dropped=self.dropped + len(samples))
        return replace(self, samples=(*self.samples, *samples), after=after)


_UNMONITORED = Unmonitored()


def interleaved(
    candidate: Runs, baseline: Runs, schedule: Schedule, monitor: Monitor = _UNMONITORED
) -> Samples:
    """Interleave runs of a candidate and a baseline; repeat all, `RETAKES` times at most, if the GPU is disturbed."""
    first = candidate(1)
    slow = first[0] > SLOW_SECONDS
    if slow and first[0] > schedule.hopeless_seconds:
        return Samples(tuple(first), (), monitor.read(), monitor.glance())
    # The first run after another kernel is slower by microseconds, so it counts only where they are nothing.
    pace = first[0] if slow else max(candidate(1)[0], 1e-7)
    fewest = schedule.fewest if pace < schedule.seconds else 1
    wanted = int(np.clip(schedule.seconds / pace, fewest, schedule.most))
    schedule = replace(schedule, most=wanted)
    found, dropped = _sample(candidate, baseline, schedule, monitor, first if slow else []), 0
    for _ in range(RETAKES):
        if not found.disturbed or sum(found.samples) + sum(found.baseline) > RETAKEN_SECONDS:
            break
        dropped += len(found.samples)
        # A clock that has changed stays while the GPU has work, and falls again while it has none.
        if is_slowed(found.before) or is_slowed(found.after):
            time.sleep(PAUSE_SECONDS)
        found = _sample(candidate, baseline, schedule, monitor, [])
    return replace(found, dropped=dropped)


def _sample(
    candidate: Runs, baseline: Runs, schedule: Schedule, monitor: Monitor, made: Sequence[float]
) -> Samples:
    """As many samples as the schedule has at most, with those that are `made` already."""
    # The GPU's state is read at the ends only: the driver updates it less often than these runs take.
    ours = list(made)
    theirs = baseline(1)
    if (more := min(int(schedule.seconds / max(theirs[0], 1e-7)), schedule.fewest_baseline) - 1) > 0:
        theirs += baseline(more)
    before = monitor.read()
    while len(ours) < schedule.most and not (
        len(ours) >= schedule.batch and _is_tight(ours, schedule.tightness)
    ):
        if sum(theirs) < schedule.baseline_share * sum(ours):
            theirs += baseline(1)
        ours += candidate(min(schedule.batch, schedule.most - len(ours)))
    after = monitor.glance()
    return Samples(tuple(ours), tuple(theirs), before, after, disturbed=disturbance(before, after))


def timing(
    shape: str, samples: tuple[float, ...], baseline: tuple[float, ...], conditions: Conditions | None = None
) -> Timing:
    """The median of the samples and its interval, in seconds, beside the baseline's median."""
    low, high = median_interval(samples)
    beside, (least, most) = float(np.median(baseline)), median_interval(baseline)
    return Timing(
        shape,
        seconds=float(np.median(samples)),
        low=low,
        high=high,
        samples=samples,
        baseline_seconds=beside,
        conditions=conditions,
        baseline_spread=max(beside - least, most - beside) / beside,
    )


def median_interval(samples: tuple[float, ...]) -> tuple[float, float]:
    """The percentile bootstrap interval of the median (Efron and Tibshirani 1993, chapter 13)."""
    # A fixed seed: the same samples always give the same interval.
    draws = np.random.default_rng(0).choice(np.asarray(samples), (RESAMPLES, len(samples)))
    return percentile_interval(np.median(draws, axis=1))


def _is_tight(samples: list[float], tightness: float) -> bool:
    low, high = median_interval(tuple(samples))
    middle = float(np.median(samples))
    return high - middle <= tightness * middle and middle - low <= tightness * middle


SLOW_SECONDS = 5e-3  # runs that take longer than this are timed fewer times

FEWEST_VARIANTS = 2
"""On how many variants of the inputs a kernel runs at least, so that it can't be right on one only."""

_RANDOM = random.SystemRandom()


class Cleaner:
    """Resets the GPU before every run. `flush` is a buffer larger than its L2 cache."""

    def __init__(self, flush: DeviceBuffer, scrub: Scrub) -> None:
        self._flush = flush
        self._scrub = scrub

    def clean(self, plan: BoundPlan, variant: int) -> None:
        """Restore the plan's buffers, and overwrite shared memory, registers and local memory, in stream order."""
        plan.restore(variant)
        self._scrub(plan.kernel.local_bytes)

    def clean_but_variables(self, plan: BoundPlan) -> None:
        """The same without resetting the plan's variables, as when a program runs the kernel again."""
        plan.arena.restore(0)
        plan.restore_scratch()
        self._scrub(plan.kernel.local_bytes)

    def cool(self) -> None:
        """Flush the cache, in stream order; the last step before a run."""
        self._flush.fill(0)


class TimedRuns:
    """Runs of a candidate and its baseline, with the variants of inputs `seen` and `held_back`."""

    def __init__(
        self,
        candidate: BoundPlan,
        baseline: BoundPlan,
        cleaner: Cleaner,
        digests: Digests,
        inputs: Sequence[int],
        *,
        checked_only: int = 0,
    ) -> None:
        """`inputs` are the digests of what the inputs hold before a run, by variant; the last `checked_only` aren't
        picked.
        """
        self.arena = candidate.arena
        self._candidate = candidate
        self._baseline = baseline
        self._cleaner = cleaner
        self._digests = digests
        self._inputs = inputs
        picked = len(inputs) - checked_only
        order = _RANDOM.sample(range(picked), picked)
        self.seen, self.held_back = order[:1], order[1:]
        self._warm = False
        self.runs: list[TimedRun] = []
        self.batches: list[Batch] = []
        self.digest_seconds = 0.0

    def candidate(self, times: int) -> list[float]:
        """Run the candidate so many times, on drawings picked at random; the seconds of each."""
        return self._batch(self._picked(times))

    def baseline(self, times: int) -> list[float]:
        """The same of the baseline."""
        watches = [Stopwatch() for _ in range(times)]
        for watch in watches:
            self._start(self._baseline, _RANDOM.choice(self.seen), watch)
        synchronize()
        return [_seconds(watch) for watch in watches]

    @property
    def is_slow(self) -> bool:
        """Whether a run takes so long that few are made."""
        return self.runs[-1].seconds > SLOW_SECONDS

    def again(self) -> None:
        """Run the candidate a random number of times, so that it can't know which run is checked."""
        everything = (*self.seen, *self.held_back)
        self._batch(_RANDOM.choices(everything, k=1))
        if not self.is_slow and (more := _RANDOM.randint(0, 9)):
            self._batch(_RANDOM.choices(everything, k=more))

    def on_seen(self, variant: int) -> None:
        """Run the candidate once more on one variant."""
        self._batch([variant])

    def unseen(self, *, again: bool = True) -> list[float]:
        """Seconds of runs on variants that were held back; a slow one runs again on the last, if that is asked for."""
        unseen = self.held_back.pop()
        times = 4
        if self.is_slow:
            times = 1 if self.held_back or not again else 2
        # The first run after a pause is slower: if runs are compared, that one is on a variant that has been seen.
        before = [_RANDOM.choice(self.seen)] if times > 1 else []
        self.seen.append(unseen)
        return self._batch([*before, *[unseen] * times])[len(before) :]

    def _picked(self, times: int) -> list[int]:
        """Variants at random; all but the last one are introduced once the kernel is warm."""
        if self._warm and len(self.held_back) > 1 and times > 1:
            at = _RANDOM.randrange(1, times)
            before = _RANDOM.choices(self.seen, k=at)
            newcomer = self.held_back.pop(0)
            self.seen.append(newcomer)
            return [*before, newcomer, *_RANDOM.choices(self.seen, k=times - at - 1)]
        self._warm = True
        return _RANDOM.choices(self.seen, k=times)

    def _batch(self, variants: Sequence[int]) -> list[float]:
        whole = Stopwatch()
        watches = [(Stopwatch(), Stopwatch()) for _ in variants]
        synchronize()
        began = time.perf_counter()
        whole.start()
        for index, (variant, (run, digest)) in enumerate(zip(variants, watches, strict=True)):
            # The candidate must not read the baseline's intermediate results.
            self._baseline.restore_own()
            self._start(self._candidate, variant, run)
            digest.start()
            self._digests.take(self.arena.outputs, 2 * index)
            self._digests.take(self.arena.inputs, 2 * index + 1)
            digest.stop()
        whole.stop()
        synchronize()
        host_seconds = time.perf_counter() - began
        self.batches.append(Batch(host_seconds, _seconds(whole)))
        found = self._digests.read(2 * len(variants))
        seconds = [_seconds(run) for run, _ in watches]
        self.digest_seconds += sum(_seconds(digest) for _, digest in watches)
        self.runs += [
            TimedRun(variant, took, found[2 * index], found[2 * index + 1] == self._inputs[variant])
            for index, (variant, took) in enumerate(zip(variants, seconds, strict=True))
        ]
        return seconds

    def _start(self, plan: BoundPlan, variant: int, watch: Stopwatch) -> None:
        self._cleaner.clean(plan, variant)
        self._cleaner.cool()
        # No synchronisation here: the GPU is still filling when the launches arrive, so that it never idles in between
        # and the kernel is timed, not the launching.
        watch.start()
        plan.run()
        watch.stop()


def _seconds(watch: Stopwatch) -> float:
    """The seconds of a stopwatch, which is freed."""
    seconds = watch.seconds
    watch.free()
    return seconds
