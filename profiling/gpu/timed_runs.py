"""Runs of a candidate as they are timed, every one of them accounted for.

Before a run nothing of an earlier one is left anywhere that a kernel can read, and its inputs are one of several
drawings, which one nobody on the GPU knows. After it, outside of what is timed, digests of its outputs and of its
inputs are taken. One drawing is held back until the end: what the kernel does with what it has never seen.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from mctskernel.profiling.gpu.code import BoundPlan
from mctskernel.profiling.gpu.cuda_driver import DeviceBuffer, Stopwatch, synchronize
from mctskernel.profiling.gpu.digests import Digests
from mctskernel.profiling.gpu.protocol import Batch, TimedRun
from mctskernel.profiling.gpu.scrub import Scrub

SLOW_SECONDS = 5e-3
"""Runs that take longer than this are timed less often."""

_RANDOM = random.SystemRandom()


class Cleaner:
    """Brings the GPU to where every run begins. `flush` is a buffer that its L2 can't hold beside anything else."""

    def __init__(self, flush: DeviceBuffer, scrub: Scrub) -> None:
        self._flush = flush
        self._scrub = scrub

    def clean(self, plan: BoundPlan, variant: int) -> None:
        """Restore what the plan runs on, and overwrite shared memory, registers and local memory, in stream order."""
        plan.restore(variant)
        self._scrub(plan.kernel.local_bytes)

    def clean_but_variables(self, plan: BoundPlan) -> None:
        """The same, with the plan's variables left as they are: as a program finds them that runs it again."""
        plan.arena.restore(0)
        plan.restore_scratch()
        self._scrub(plan.kernel.local_bytes)

    def cool(self) -> None:
        """Leave nothing in the cache, in stream order; the last thing before a run."""
        self._flush.fill(0)


class TimedRuns:
    """Runs of a candidate and of the baseline it is compared with; `runs` and `batches` are the candidate's so far.

    `seen` are the drawings of the inputs that it has run on, `held_back` the others.
    """

    def __init__(
        self,
        candidate: BoundPlan,
        baseline: BoundPlan,
        cleaner: Cleaner,
        digests: Digests,
        inputs: Sequence[int],
    ) -> None:
        """`inputs` are the digests of what the inputs hold before a run, by variant."""
        self.arena = candidate.arena
        self._candidate = candidate
        self._baseline = baseline
        self._cleaner = cleaner
        self._digests = digests
        self._inputs = inputs
        order = _RANDOM.sample(range(len(inputs)), len(inputs))
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

    def again(self) -> None:
        """Run the candidate some times; which run is the last one, nobody on the GPU knows."""
        everything = (*self.seen, *self.held_back)
        self._batch(_RANDOM.choices(everything, k=_RANDOM.randint(1, 10)))

    def on_seen(self, variant: int) -> None:
        """Run the candidate once more on one drawing."""
        self._batch([variant])

    def unseen(self) -> list[float]:
        """Run the candidate on the drawing that was held back: the first time, and again; the seconds of each."""
        slow = self.runs[-1].seconds > SLOW_SECONDS
        # The first run after a pause is slower: that one is on what has been seen.
        before = [] if slow else [_RANDOM.choice(self.seen)]
        unseen = self.held_back.pop()
        self.seen.append(unseen)
        return self._batch([*before, *[unseen] * (2 if slow else 4)])[len(before) :]

    def _picked(self, times: int) -> list[int]:
        """Drawings at random, all but the last one of them introduced once the kernel is warm."""
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
            # The baseline's intermediate results are none of the candidate's business.
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
        # Nobody waits here: the GPU is still filling when the launches arrive, so that it never idles in between and
        # what is timed is the kernel and not the launching.
        watch.start()
        plan.run()
        watch.stop()


def _seconds(watch: Stopwatch) -> float:
    """The seconds of a watch that isn't needed any more."""
    seconds = watch.seconds
    watch.free()
    return seconds
