"""Evaluations on the GPUs of this machine: processes that compile feed those that hold the GPUs."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self

from mctskernel.core.device import UUID, UUID_SEPARATOR, DeviceSpec
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.executor import LOCAL, ExecutorOptions
from mctskernel.core.kernel import Kernel
from mctskernel.core.task_file import task_of
from mctskernel.executors.gpu_gate import emulated, watched
from mctskernel.executors.gpu_pool import GpuPool, Seat
from mctskernel.executors.tickets import Tickets
from mctskernel.profiling.counter_sets import DEFAULT_METRICS, METRICS, counters_for, fewer_remarks
from mctskernel.profiling.gpu.choice import chosen_gpus
from mctskernel.profiling.gpu.evaluator import GpuEvaluator
from mctskernel.profiling.gpu.evaluator_apart import EvaluatorApart
from mctskernel.profiling.gpu.session import GPU_SERVICE
from mctskernel.profiling.processes.compile_process import Prepared
from mctskernel.profiling.processes.compiler import Compiler
from mctskernel.profiling.versions import package_versions

GateCheck = Callable[[Evaluation, Kernel, DeviceSpec], Evaluation]
"""Refuses an evaluation of the last gate for what it finds, or adds a remark."""


def open_gpus(spec: DeviceSpec, workers: int, options: ExecutorOptions = LOCAL) -> GpuExecutor:
    """An executor on the GPUs of this machine that the options name. Raises TaskError and DeviceError."""
    choice = chosen_gpus(options.gpus)
    counters = counters_for(len(choice.gpus), options.counters)
    return GpuExecutor(
        spec,
        workers=workers,
        gpus=choice.uuids,
        metrics=METRICS[counters],
        remarks=(*choice.remarks, *fewer_remarks(counters, options.counters)),
    )


def judge_at_last_gate(
    spec: DeviceSpec,
    kernel: Kernel,
    baseline: Kernel,
    *,
    metrics: Sequence[str] = DEFAULT_METRICS,
    service: str = GPU_SERVICE,
    checks: Sequence[GateCheck] = (watched, emulated),
) -> Evaluation:
    """Evaluate a kernel at what was held out on the GPU of a device, in processes of its own and with a fresh seed.

    `checks` follow. Raises DeviceError.
    """
    spec = spec.at_last_gate
    with GpuExecutor(spec, metrics=metrics, service=service, baseline=baseline) as gate:
        gate.submit(0, kernel)
        ((_, evaluation),) = gate.wait()
    for check in checks:
        if evaluation.ok:
            evaluation = check(evaluation, kernel, spec)
    return evaluation


class GpuExecutor:
    """`workers` compile processes and a process for each GPU, which judges one kernel at a time.

    `gpus` are the UUIDs of GPUs of one kind; without them it is that of `spec`. Whichever is free takes the next kernel
    that was built, and is held alone meanwhile, among all processes of the machine. Times are interleaved with the
    baseline's, which is the starting kernel unless another one is named; `gate_checks` follow the last gate's
    evaluation. A GPU that is lost is left out from then on. Use it as a context manager, or call `close`. Not shared
    between threads. Raises TaskError, and DeviceError where no GPU can be used.
    """

    def __init__(
        self,
        spec: DeviceSpec,
        *,
        workers: int = 1,
        gpus: Sequence[str] = (),
        metrics: Sequence[str] = DEFAULT_METRICS,
        service: str = GPU_SERVICE,
        baseline: Kernel | None = None,
        gate_checks: Sequence[GateCheck] = (watched, emulated),
        remarks: Sequence[str] = (),
    ) -> None:
        if workers < 1:
            raise ValueError(f"An executor needs at least one worker, not {workers}.")
        self._spec, self._metrics, self._service = spec, metrics, service
        self._gate_checks, self._remarks = gate_checks, remarks
        self._tickets = Tickets()
        self._compilers: list[Compiler] = []
        self._idle_compilers: queue.SimpleQueue[Compiler] = queue.SimpleQueue()
        task = task_of(spec)
        # Several would wait for each other's Python and for the search's; for one a process more isn't worth its start.
        kind = EvaluatorApart if len(gpus) > 1 else GpuEvaluator
        self._gpus = GpuPool([kind(replace(spec, gpu=gpu), metrics, service) for gpu in gpus or (spec.gpu,)])
        self._compile_threads = ThreadPoolExecutor(workers, "compile")
        try:
            for _ in range(workers):
                self._compilers.append(Compiler(spec, self._first.gpu.gpu.architecture))
                self._idle_compilers.put(self._compilers[-1])
            building = self._compile_threads.submit(self._compile, baseline or task.starting_kernel)
            self._gpus.begin(partial(_use_baseline, building))
        except BaseException:
            self.close()
            raise

    @property
    def capacity(self) -> int:
        """How many evaluations can be in flight: one on each GPU that is left, and one for each compile process."""
        return len(self._compilers) + self._gpus.size

    def submit(self, ticket: int, kernel: Kernel) -> None:
        """Begin an evaluation. `ticket`, not in flight already, comes back with its result."""
        self._tickets.begin(ticket)
        self._compile_threads.submit(self._tickets.run, ticket, lambda: self._build(ticket, kernel))

    def wait(self, timeout: float | None = None) -> list[tuple[int, Evaluation]]:
        """The evaluations that have finished since the last call, waiting for the first of them.

        Empty when nothing is in flight, or when nothing finished in `timeout` seconds. Raises DeviceError
        when the machine is broken: no GPU is left.
        """
        return self._tickets.wait(timeout)

    def last_gate(self, kernel: Kernel, baseline: Kernel) -> Evaluation:
        """Evaluate a kernel at what was held out, in processes of its own and with a fresh seed; waits for it."""
        # On a GPU that is free, and by the thread that drives it, so that nothing else is timed there meanwhile.
        return self._gpus.run(lambda seat: self._gate(seat, kernel, baseline))

    def fingerprint(self) -> dict[str, str]:
        """The GPUs, their driver and what compiles for them."""
        gpu = self._first.gpu.gpu
        return {
            "device": "gpu",
            "gpu": gpu.name,
            UUID: UUID_SEPARATOR.join(seat.gpu.gpu.uuid for seat in self._gpus.seats),
            "driver": gpu.driver,
            "architecture": gpu.architecture,
            **package_versions("nvidia-cuda-nvrtc", "cuda-bindings", "triton"),
        }

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the user should know of this machine: why there are no counters, if there are none; lost GPUs."""
        return (*self._remarks, *self._first.gpu.remarks, *self._gpus.remarks)

    def close(self) -> None:
        """Kill the processes, whatever they are doing."""
        for compiler in self._compilers:
            compiler.interrupt()
        self._compile_threads.shutdown(cancel_futures=True)
        self._gpus.close()
        for compiler in self._compilers:
            compiler.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _first(self) -> Seat:
        return self._gpus.seats[0]

    def _gate(self, seat: Seat, kernel: Kernel, baseline: Kernel) -> Evaluation:
        # The gate's own process counts there.
        seat.evaluator.release_counters()
        return judge_at_last_gate(
            replace(self._spec, gpu=seat.gpu.gpu.uuid),
            kernel,
            baseline,
            metrics=self._metrics,
            service=self._service,
            checks=self._gate_checks,
        )

    def _compile(self, kernel: Kernel) -> Prepared | Evaluation:
        compiler = self._idle_compilers.get()
        try:
            return compiler.prepare(kernel)
        finally:
            self._idle_compilers.put(compiler)

    def _build(self, ticket: int, kernel: Kernel) -> Evaluation | None:
        """Build and pass on to the GPUs; what can't be built ends here."""
        result = self._compile(kernel)
        if isinstance(result, Evaluation):
            return result
        self._gpus.submit(lambda seat: seat.evaluator.evaluate(result), partial(self._tickets.finish, ticket))
        return None


def _use_baseline(building: Future[Prepared | Evaluation], seat: Seat) -> None:
    """Where it can't be built, times are interleaved with the candidate's own; its evaluation tells why."""
    if building.exception() is None and isinstance(prepared := building.result(), Prepared):
        seat.evaluator.use_baseline(prepared.candidate)
