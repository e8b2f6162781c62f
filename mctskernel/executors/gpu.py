"""Evaluations on the GPU of this machine: processes that compile feed the one that holds the GPU."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from mctskernel.core.device import DeviceSpec
from mctskernel.core.evaluation import Check, Evaluation
from mctskernel.core.kernel import Kernel
from mctskernel.core.task_file import load_task
from mctskernel.executors.tickets import Tickets
from mctskernel.profiling.counter_sets import DEFAULT_METRICS
from mctskernel.profiling.gpu.judge import GpuJudge
from mctskernel.profiling.gpu.session import GPU_SERVICE
from mctskernel.profiling.processes.compile_process import Prepared
from mctskernel.profiling.processes.compiler import Compiler
from mctskernel.profiling.stages import Stages
from mctskernel.profiling.versions import package_versions


class GpuExecutor:
    """`workers` compile processes and one GPU process, which judges one kernel at a time.

    Times are interleaved with the starting kernel's. Use it as a context manager, or call `close`. Not shared between
    threads. Raises TaskError, and DeviceError for a GPU that can't be used.
    """

    def __init__(
        self,
        spec: DeviceSpec,
        *,
        workers: int = 1,
        metrics: Sequence[str] = DEFAULT_METRICS,
        service: str = GPU_SERVICE,
    ) -> None:
        if workers < 1:
            raise ValueError(f"An executor needs at least one worker, not {workers}.")
        self._tickets = Tickets()
        self._compilers: list[Compiler] = []
        self._idle_compilers: queue.SimpleQueue[Compiler] = queue.SimpleQueue()
        task = load_task(spec.task_folder, spec.language)
        self._judge = GpuJudge(task, spec.seed, metrics, service)
        self._compile_threads = ThreadPoolExecutor(workers, "compile")
        self._gpu_thread = ThreadPoolExecutor(1, "gpu")
        try:
            self._opened = self._judge.opened
            for _ in range(workers):
                self._compilers.append(
                    Compiler(spec.task_folder, spec.language, self._opened.gpu.architecture)
                )
                self._idle_compilers.put(self._compilers[-1])
            self._gpu_thread.submit(self._use_baseline, task.starting_kernel)
        except BaseException:
            self.close()
            raise

    @property
    def capacity(self) -> int:
        """How many evaluations can be in flight: one on the GPU, and one for each compile process."""
        return len(self._compilers) + 1

    def submit(self, ticket: int, kernel: Kernel) -> None:
        """Begin an evaluation. `ticket`, not in flight already, comes back with its result."""
        self._tickets.begin(ticket)
        self._compile_threads.submit(self._tickets.run, ticket, lambda: self._build(ticket, kernel))

    def wait(self, timeout: float | None = None) -> list[tuple[int, Evaluation]]:
        """The evaluations that have finished since the last call, waiting for the first of them.

        Empty when nothing is in flight, or when nothing finished in `timeout` seconds. Raises DeviceError
        when the machine is broken.
        """
        return self._tickets.wait(timeout)

    def final_check(self, kernel: Kernel) -> tuple[Check, ...]:
        """Verify a kernel on the held-out shapes; waits for it."""
        prepared = self._compile_threads.submit(self._compile, kernel).result()
        if isinstance(prepared, Evaluation):
            return (Check("", 0, passed=False, error=float("inf"), message=prepared.message),)
        return self._gpu_thread.submit(self._judge.final_check, prepared.candidate).result()

    def fingerprint(self) -> dict[str, str]:
        """The GPU, its driver and what compiles for it."""
        gpu = self._opened.gpu
        return {
            "device": "gpu",
            "gpu": gpu.name,
            "uuid": gpu.uuid,
            "driver": gpu.driver,
            "architecture": gpu.architecture,
            **package_versions("nvidia-cuda-nvrtc", "cuda-bindings", "triton"),
        }

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the user should know of this machine: why there are no counters, if there are none."""
        return (self._opened.counters,) if self._opened.counters else ()

    def close(self) -> None:
        """Kill the processes, whatever they are doing."""
        self._judge.interrupt()
        for compiler in self._compilers:
            compiler.interrupt()
        self._compile_threads.shutdown(cancel_futures=True)
        self._gpu_thread.shutdown(cancel_futures=True)
        for compiler in self._compilers:
            compiler.close()
        self._judge.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _compile(self, kernel: Kernel) -> Prepared | Evaluation:
        compiler = self._idle_compilers.get()
        try:
            return compiler.prepare(kernel)
        finally:
            self._idle_compilers.put(compiler)

    def _build(self, ticket: int, kernel: Kernel) -> Evaluation | None:
        """Build and pass on to the GPU; what can't be built ends here."""
        result = self._compile(kernel)
        if isinstance(result, Evaluation):
            return result
        self._gpu_thread.submit(self._tickets.run, ticket, lambda: self._judged(result))
        return None

    def _judged(self, prepared: Prepared) -> Evaluation:
        stages = Stages()
        stages.add(prepared.stage_seconds)
        return self._judge.evaluate(prepared.candidate, stages)

    def _use_baseline(self, kernel: Kernel) -> None:
        """Where it can't be built, times are interleaved with the candidate's own; its evaluation tells why."""
        prepared = self._compile(kernel)
        if isinstance(prepared, Prepared):
            self._judge.use_baseline(prepared.candidate)
