"""GPUs that take work from one queue: whichever is free takes the next, and one that is lost hands its work on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from mctskernel.core.device import DeviceError
from mctskernel.core.evaluation import Evaluation, Guard, Outcome, Source
from mctskernel.profiling.gpu.evaluator import Evaluator
from mctskernel.profiling.gpu.protocol import Opened

MOST_LOSSES = 2
"""How many GPUs may be lost over one kernel before that is the kernel's doing."""

IDLE_SECONDS = 0.5
"""After so long without a kernel a GPU's counters are given back: a search that ends or pauses needs none."""

Finish = Callable[[Evaluation | Exception], None]


@dataclass(frozen=True, eq=False)
class Seat:
    """An open GPU with what judges on it."""

    gpu: Opened
    evaluator: Evaluator

    @property
    def name(self) -> str:
        """What sentences call it."""
        return f"The GPU {self.gpu.gpu.uuid[:8]}"


Work = Callable[[Seat], Evaluation]


@dataclass(frozen=True)
class _Job:
    work: Work
    finish: Finish
    losses: int = 0


class GpuPool:
    """Several GPUs of one kind, each with a thread of its own.

    Opens all of them at the same time; those that can't be opened are left out with a remark. Raises what opening the
    first raised when none can be, and TaskError. `submit` may be called from any thread.
    """

    def __init__(self, evaluators: Sequence[Evaluator]) -> None:
        self._evaluators = tuple(evaluators)
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._lost: list[str] = []
        self._broken: DeviceError | None = None
        self._closed = False
        self._threads = ThreadPoolExecutor(len(self._evaluators), "gpu")
        try:
            self.seats = self._open()
        except BaseException:
            self.close()
            raise
        self._left = set(self.seats)

    @property
    def size(self) -> int:
        """How many GPUs are left."""
        return len(self._left)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Which GPUs were lost, and what disturbs the others, in sentences."""
        disturbed = (seat.evaluator.remark for seat in self.seats)
        return (*self._lost, *dict.fromkeys(remark for remark in disturbed if remark))

    def begin(self, prepare: Callable[[Seat], None]) -> None:
        """Prepare each of the GPUs, in its thread, and have it take what was submitted from then on."""
        for seat in self.seats:
            self._threads.submit(self._drive, seat, prepare)

    def submit(self, work: Work, finish: Finish) -> None:
        """Have the next free GPU do some work, and `finish` told, in that GPU's thread, what came of it.

        That is a DeviceError when no GPU is left, and any other error that `work` raises.
        """
        with self._lock:
            if self._broken is None:
                self._jobs.put(_Job(work, finish))
                return
        finish(self._broken)

    def run(self, work: Work) -> Evaluation:
        """Have the next free GPU do some work, and wait for it. Raises what came of it."""
        results: queue.SimpleQueue[Evaluation | Exception] = queue.SimpleQueue()
        self.submit(work, results.put)
        result = results.get()
        if isinstance(result, Exception):
            raise result
        return result

    def close(self) -> None:
        """Stop at once, whatever the GPUs are doing."""
        self._closed = True
        for evaluator in self._evaluators:
            evaluator.interrupt()
            self._jobs.put(None)
        self._threads.shutdown(cancel_futures=True)
        for evaluator in self._evaluators:
            evaluator.close()

    def _open(self) -> tuple[Seat, ...]:
        opening = [self._threads.submit(evaluator.open) for evaluator in self._evaluators]
        seats: list[Seat] = []
        failures: list[DeviceError] = []
        for evaluator, opened in zip(self._evaluators, opening, strict=True):
            try:
                seats.append(Seat(opened.result(), evaluator))
            except DeviceError as error:
                failures.append(error)
        if not seats:
            raise failures[0]
        self._lost += [f"A GPU could not be used: {error}" for error in failures]
        return tuple(seats)

    def _drive(self, seat: Seat, prepare: Callable[[Seat], None]) -> None:
        job: _Job | None = None
        try:
            prepare(seat)
            while (job := self._next(seat)) is not None and not self._closed:
                self._do(job, seat)
        except DeviceError as error:
            self._lose(seat, error, job)

    def _next(self, seat: Seat) -> _Job | None:
        """The next job. Who has none for a while lets others count on the GPU."""
        try:
            return self._jobs.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            seat.evaluator.release_counters()
            return self._jobs.get()

    @staticmethod
    def _do(job: _Job, seat: Seat) -> None:
        try:
            result: Evaluation | Exception = job.work(seat)
        except DeviceError:
            raise
        except Exception as error:  # noqa: BLE001 - raised again in the thread that waits for it
            result = error
        job.finish(result)

    def _lose(self, seat: Seat, error: DeviceError, job: _Job | None) -> None:
        """Go on without a GPU: hand its work on, or end all of it when that was the last one."""
        if self._closed:
            return
        ended: list[_Job] = []
        with self._lock:
            self._left.discard(seat)
            if self._left:
                self._lost.append(f"{seat.name} was lost, and the others went on without it: {error}")
                if job is not None and job.losses + 1 < MOST_LOSSES:
                    self._jobs.put(replace(job, losses=job.losses + 1))
                    job = None
            else:
                self._broken = error
                ended += [] if job is None else [job]
                while not self._jobs.empty():
                    ended += [each] if (each := self._jobs.get()) is not None else []
                job = None
        seat.evaluator.interrupt()
        for each in ended:
            each.finish(error)
        if job is not None:
            job.finish(_took_down(error))


def _took_down(error: DeviceError) -> Evaluation:
    message = f"{MOST_LOSSES} GPUs were lost while they judged this kernel, one after the other: {error}"
    return Evaluation(Outcome.CRASH, Source.MEASURED, message, guard=Guard.SEPARATE_PROCESS)
