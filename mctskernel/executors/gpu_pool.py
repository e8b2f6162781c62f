"""Several GPUs of one kind, each driven by a thread, and the work that waits for the next free one."""

from __future__ import annotations

import itertools
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from mctskernel.core.device import DeviceError
from mctskernel.core.evaluation import Evaluation, Guard, Outcome, Source
from mctskernel.executors.tickets import Finish, in_thread
from mctskernel.profiling.gpu.evaluator import GpuEvaluator

MOST_LOSSES = 2
"""How many GPUs may be lost over one kernel before the kernel is blamed."""

IDLE_SECONDS = 0.5
"""How often a GPU without a kernel releases its counters where another search waits for them."""

CLOSE_SECONDS = 1.0
"""How long to wait, when all is to stop, for the threads that drive GPUs."""

SWITCH_SECONDS = 5e-4
"""How long one thread may keep Python's lock while another waits, where GPUs are served beside a search."""

Work = Callable[[GpuEvaluator], Evaluation]


@dataclass(frozen=True)
class _Job:
    work: Work
    finish: Finish
    losses: int = 0


class GpuPool:
    """Several GPUs of one kind, each with a thread of its own.

    Opens all of them at the same time; those that can't be opened are left out with a warning. Raises the error of the
    first when none can be opened, and TaskError. `meanwhile` is called while they are. `submit` may be called from any
    thread.
    """

    def __init__(
        self, evaluators: Sequence[GpuEvaluator], meanwhile: Callable[[], None] | None = None
    ) -> None:
        sys.setswitchinterval(SWITCH_SECONDS)
        self._all = tuple(evaluators)
        self._jobs: queue.PriorityQueue[tuple[int, int, _Job | None]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._warnings: list[str] = []
        self._broken: DeviceError | None = None
        self._closed = False
        self._driving: dict[GpuEvaluator, Future[None]] = {}
        try:
            self.evaluators = self._open(meanwhile)
        except BaseException:
            self.close()
            raise
        self._left = set(self.evaluators)

    @property
    def size(self) -> int:
        return len(self._left)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Which GPUs were lost, and what disturbs the others, in sentences."""
        disturbed = (evaluator.warning for evaluator in self.evaluators)
        return (*self._warnings, *dict.fromkeys(warning for warning in disturbed if warning))

    def begin(self, prepare: Callable[[GpuEvaluator], None]) -> None:
        """Prepare each of the GPUs, in its thread, and have it take jobs from then on."""
        for evaluator in self.evaluators:
            self._driving[evaluator] = in_thread(partial(self._drive, evaluator, prepare), "gpu")

    def submit(self, work: Work, finish: Finish, turn: int = -1) -> None:
        """Have the next free GPU do some work, and call `finish` with the result in that GPU's thread.

        The work of the lowest turn that waits is next.

        The result is a DeviceError when no GPU is left, and any other error that `work` raises.
        """
        with self._lock:
            if self._broken is None:
                self._put(_Job(work, finish), turn)
                return
        finish(self._broken)

    def run(self, work: Work) -> Evaluation:
        """Have the next free GPU do some work before any other, and wait for the result. Raises its errors."""
        results: queue.SimpleQueue[Evaluation | Exception] = queue.SimpleQueue()
        self.submit(work, results.put)
        result = results.get()
        if isinstance(result, Exception):
            raise result
        return result

    def close(self) -> None:
        """Stop at once, whatever the GPUs are doing."""
        self._closed = True
        for evaluator in self._all:
            evaluator.interrupt()
            self._put(None)
        # A reference in numpy can't be interrupted: what its thread still uses is left to the end of this process.
        _, late = wait(self._driving.values(), CLOSE_SECONDS)
        for evaluator in self._all:
            if self._driving.get(evaluator) not in late:
                evaluator.close()

    def _open(self, meanwhile: Callable[[], None] | None) -> tuple[GpuEvaluator, ...]:
        opening = [in_thread(evaluator.open, "gpu") for evaluator in self._all]
        if meanwhile is not None:
            meanwhile()
        opened: list[GpuEvaluator] = []
        failures: list[DeviceError] = []
        for evaluator, future in zip(self._all, opening, strict=True):
            try:
                future.result()
                opened.append(evaluator)
            except DeviceError as error:
                failures.append(error)
        if not opened:
            raise failures[0]
        self._warnings += [f"A GPU could not be used: {error}" for error in failures]
        return tuple(opened)

    def _drive(self, evaluator: GpuEvaluator, prepare: Callable[[GpuEvaluator], None]) -> None:
        job: _Job | None = None
        try:
            prepare(evaluator)
            while (job := self._next(evaluator)) is not None and not self._closed:
                try:
                    result: Evaluation | Exception = job.work(evaluator)
                except DeviceError:
                    raise
                except Exception as error:  # noqa: BLE001 - raised again in the thread that waits for it
                    result = error
                job.finish(result)
        except DeviceError as error:
            self._lose(evaluator, error, job)

    def _next(self, evaluator: GpuEvaluator) -> _Job | None:
        while True:
            with suppress(queue.Empty):
                return self._jobs.get(timeout=IDLE_SECONDS)[-1]
            evaluator.share_counters()

    def _put(self, job: _Job | None, turn: int = -1) -> None:
        self._jobs.put((turn, next(self._numbers), job))

    def _lose(self, evaluator: GpuEvaluator, error: DeviceError, job: _Job | None) -> None:
        """Go on without a GPU: hand its job on, or end all jobs when it was the last one."""
        if self._closed:
            return
        ended: list[_Job] = []
        with self._lock:
            self._left.discard(evaluator)
            if self._left:
                name = f"The GPU {evaluator.opened.gpu.uuid[:8]}"
                self._warnings.append(f"{name} was lost, and the others went on without it: {error}")
                if job is not None and job.losses + 1 < MOST_LOSSES:
                    self._put(replace(job, losses=job.losses + 1))
                    job = None
            else:
                self._broken = error
                ended += [] if job is None else [job]
                while not self._jobs.empty():
                    ended += [each] if (each := self._jobs.get()[-1]) is not None else []
                job = None
        evaluator.interrupt()
        for each in ended:
            each.finish(error)
        if job is not None:
            message = (
                f"{MOST_LOSSES} GPUs were lost while they evaluated this kernel, one after the other: {error}"
            )
            job.finish(Evaluation(Outcome.CRASH, Source.MEASURED, message, guard=Guard.SEPARATE_PROCESS))
