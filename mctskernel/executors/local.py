"""Evaluations on worker processes of this machine."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial

from mctskernel.core.device import DeviceSpec, Trial
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.executor import LOCAL, ExecutorOptions
from mctskernel.core.kernel import Kernel
from mctskernel.executors.tickets import Finish, Interrupt, Result, TicketedExecutor, run
from mctskernel.profiling.devices import open_device
from mctskernel.profiling.processes.worker import Limits, Opener, Worker

LIMITS = Limits(seconds=30.0)
"""Limits of one evaluation: a worker that exceeds them is replaced, and the search goes on."""

VALIDATION_FACTOR = 4.0
"""How many times that the final validation may take: a busy machine is no reason to refuse a finalist."""


class LocalExecutor(TicketedExecutor):
    """`workers` processes, each with a device of its own and a thread here that waits for it, fed from one queue.

    The result of an evaluation depends on the kernel alone, never on the number of workers or on the order.
    Use it as a context manager, or call `close`. Not shared between threads.
    """

    def __init__(
        self, spec: DeviceSpec, *, workers: int = 1, limits: Limits = LIMITS, opener: Opener = open_device
    ) -> None:
        super().__init__()
        self._spec, self._limits, self._opener = spec, limits, opener
        self._workers = [self._open(spec, self._limits) for _ in range(workers)]
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(workers, "worker")
        self._interrupt = Interrupt()

    @property
    def capacity(self) -> int:
        return len(self._workers)

    def final_validation(self, kernel: Kernel, baseline: Kernel) -> Evaluation:
        """Evaluate a kernel on held-out shapes, in a new process and with a new seed; waits for it."""
        spec = self._spec.in_final_validation
        evaluation = self._evaluate_anew(spec, kernel)
        if not evaluation.ok:
            return evaluation
        if kernel == baseline:
            return beside_baseline(evaluation, evaluation)
        timed = self._evaluate_anew(replace(spec, trial=Trial.BASELINE), baseline)
        return beside_baseline(evaluation, timed)

    def fingerprint(self) -> dict[str, str]:
        return self._threads.submit(self._with_worker, Worker.fingerprint).result()

    @property
    def notes(self) -> tuple[str, ...]:
        """None: every evaluation says what this device lacks."""
        return ()

    def close(self) -> None:
        """Kill the workers, whatever they are doing, from any thread."""
        self._interrupt.set()
        for worker in self._workers:
            worker.interrupt()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.close()
        self._workers = []

    def _begin(self, kernel: Kernel, finish: Finish) -> None:
        work = partial(self._with_worker, lambda worker: worker.evaluate(kernel))
        self._threads.submit(run, work, finish)

    def _evaluate_anew(self, spec: DeviceSpec, kernel: Kernel) -> Evaluation:
        limits = replace(self._limits, seconds=VALIDATION_FACTOR * self._limits.seconds)
        with closing(self._open(spec, limits)) as worker, self._interrupt.calls(worker.interrupt):
            return worker.evaluate(kernel)

    def _open(self, spec: DeviceSpec, limits: Limits) -> Worker:
        return Worker(spec, limits=limits, opener=self._opener)

    def _with_worker(self, work: Callable[[Worker], Result]) -> Result:
        worker = self._idle.get()
        try:
            return work(worker)
        finally:
            self._idle.put(worker)


def open_local(spec: DeviceSpec, workers: int, options: ExecutorOptions = LOCAL) -> LocalExecutor:  # noqa: ARG001 - opens a device
    """Worker processes that open the device. Raises TaskError and DeviceError."""
    return LocalExecutor(spec, workers=workers)


def beside_baseline(evaluation: Evaluation, baseline: Evaluation) -> Evaluation:
    """The evaluation with the baseline's time at each shape, or a note why there is none."""
    if not baseline.ok:
        note = f"There is no time of the baseline to compare with: {baseline.message}"
        return replace(evaluation, flags=(*evaluation.flags, note))
    seconds = {timing.shape: timing.seconds for timing in baseline.timings}
    timings = (replace(timing, baseline_seconds=seconds.get(timing.shape)) for timing in evaluation.timings)
    return replace(evaluation, timings=tuple(timings))
