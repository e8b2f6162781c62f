"""Evaluations on the GPU of this machine: processes that compile feed the one that holds the GPU."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from mctskernel.core.device import DeviceSpec
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.kernel import Kernel
from mctskernel.core.task_file import task_of
from mctskernel.executors.gpu_gate import emulated, watched
from mctskernel.executors.tickets import Tickets
from mctskernel.profiling.counter_sets import DEFAULT_METRICS
from mctskernel.profiling.gpu.judge import GpuJudge
from mctskernel.profiling.gpu.session import GPU_SERVICE
from mctskernel.profiling.processes.compile_process import Prepared
from mctskernel.profiling.processes.compiler import Compiler
from mctskernel.profiling.stages import Stages
from mctskernel.profiling.versions import package_versions

GateCheck = Callable[[Evaluation, Kernel, DeviceSpec], Evaluation]
"""Refuses an evaluation of the last gate for what it finds, or adds a remark."""


class GpuExecutor:
    """`workers` compile processes and one GPU process, which judges one kernel at a time.

    Times are interleaved with the baseline's, which is the starting kernel unless another one is named; `gate_checks`
    follow the last gate's evaluation. Use it as a context manager, or call `close`. Not shared between threads. Raises
    TaskError, and DeviceError for a GPU that can't be used.
    """

    def __init__(
        self,
        spec: DeviceSpec,
        *,
        workers: int = 1,
        metrics: Sequence[str] = DEFAULT_METRICS,
        service: str = GPU_SERVICE,
        baseline: Kernel | None = None,
        gate_checks: Sequence[GateCheck] = (watched, emulated),
    ) -> None:
        if workers < 1:
            raise ValueError(f"An executor needs at least one worker, not {workers}.")
        self._spec, self._metrics, self._service = spec, metrics, service
        self._gate_checks = gate_checks
        self._tickets = Tickets()
        self._compilers: list[Compiler] = []
        self._idle_compilers: queue.SimpleQueue[Compiler] = queue.SimpleQueue()
        task = task_of(spec)
        self._judge = GpuJudge(task, spec.seed, metrics, service)
        self._compile_threads = ThreadPoolExecutor(workers, "compile")
        self._gpu_thread = ThreadPoolExecutor(1, "gpu")
        try:
            self._opened = self._judge.opened
            for _ in range(workers):
                self._compilers.append(Compiler(spec, self._opened.gpu.architecture))
                self._idle_compilers.put(self._compilers[-1])
            self._gpu_thread.submit(self._use_baseline, baseline or task.starting_kernel)
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

    def last_gate(self, kernel: Kernel, baseline: Kernel) -> Evaluation:
        """Evaluate a kernel at what was held out, in processes of its own and with a fresh seed; waits for it."""
        # In the GPU's turn, so that nothing else is timed meanwhile.
        return self._gpu_thread.submit(self._last_gate, kernel, baseline).result()

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
        """What the user should know of this machine: why there are no counters, if there are none, say."""
        return self._opened.remarks

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

    def _last_gate(self, kernel: Kernel, baseline: Kernel) -> Evaluation:
        spec = self._spec.at_last_gate
        with GpuExecutor(spec, metrics=self._metrics, service=self._service, baseline=baseline) as gate:
            gate.submit(0, kernel)
            ((_, evaluation),) = gate.wait()
        for check in self._gate_checks:
            if evaluation.ok:
                evaluation = check(evaluation, kernel, spec)
        return evaluation

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
