"""Evaluations on worker processes of this machine."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Self

from mctskernel.core.device import DeviceSpec
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.kernel import Kernel
from mctskernel.executors.baseline import beside_baseline
from mctskernel.executors.tickets import Tickets
from mctskernel.profiling.devices import open_device
from mctskernel.profiling.processes.workers import Limits, Opener, Worker

LIMITS = Limits(seconds=20.0)
"""A candidate that takes this long costs its worker, and the search goes on."""

GATE_FACTOR = 4.0
"""How many times that the last gate may take: it looks at values where the search has timed and prices that again, and
a busy machine is no reason to refuse a finalist."""


class LocalExecutor:
    """`workers` processes, each with a device of its own and a thread here that waits for it, fed from one queue.

    What an evaluation comes to depends on the kernel alone, never on the number of workers or on the order.
    Use it as a context manager, or call `close`. Not shared between threads.
    """

    def __init__(
        self,
        spec: DeviceSpec,
        *,
        workers: int = 1,
        limits: Limits = LIMITS,
        opener: Opener = open_device,
    ) -> None:
        if workers < 1:
            raise ValueError(f"An executor needs at least one worker, not {workers}.")
        self._spec, self._limits, self._opener = spec, limits or Limits(), opener
        self._tickets = Tickets()
        self._workers = [self._open(spec, self._limits) for _ in range(workers)]
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(workers, "worker")

    @property
    def capacity(self) -> int:
        """How many evaluations can be in flight without one waiting for another."""
        return len(self._workers)

    def submit(self, ticket: int, kernel: Kernel) -> None:
        """Begin an evaluation. `ticket`, not in flight already, comes back with its result."""
        self._tickets.begin(ticket)
        self._threads.submit(self._tickets.run, ticket, lambda: self._evaluate(kernel))

    def wait(self, timeout: float | None = None) -> list[tuple[int, Evaluation]]:
        """The evaluations that have finished since the last call, waiting for the first of them.

        Empty when nothing is in flight, or when nothing finished in `timeout` seconds. Raises DeviceError
        when the device is broken or can't be opened.
        """
        return self._tickets.wait(timeout)

    def last_gate(self, kernel: Kernel, baseline: Kernel) -> Evaluation:
        """Evaluate a kernel at what was held out, in a process of its own and with a fresh seed; waits for it."""
        limits = replace(self._limits, seconds=GATE_FACTOR * self._limits.seconds)
        with closing(self._open(self._spec.at_last_gate, limits)) as worker:
            evaluation = worker.evaluate(kernel)
            if not evaluation.ok:
                return evaluation
            return beside_baseline(
                evaluation, evaluation if kernel == baseline else worker.evaluate(baseline)
            )

    def fingerprint(self) -> dict[str, str]:
        """What a time from these workers' devices may be compared with."""
        return self._threads.submit(self._fingerprint).result()

    @property
    def remarks(self) -> tuple[str, ...]:
        """Nothing: what this device lacks, every evaluation says."""
        return ()

    def close(self) -> None:
        """Kill the workers, whatever they are doing."""
        for worker in self._workers:
            worker.interrupt()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.close()
        self._workers = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _evaluate(self, kernel: Kernel) -> Evaluation:
        with self._idle_worker() as worker:
            return worker.evaluate(kernel)

    def _open(self, spec: DeviceSpec, limits: Limits) -> Worker:
        return Worker(spec, limits=limits, opener=self._opener)

    def _fingerprint(self) -> dict[str, str]:
        with self._idle_worker() as worker:
            return worker.fingerprint()

    @contextmanager
    def _idle_worker(self) -> Iterator[Worker]:
        worker = self._idle.get()
        try:
            yield worker
        finally:
            self._idle.put(worker)
