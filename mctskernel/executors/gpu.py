"""Evaluations on the GPUs of this machine: compile workers feed the processes that hold the GPUs."""

from __future__ import annotations

import itertools
import math
import os
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial

from mctskernel.core.device import UUID, UUID_SEPARATOR, DeviceError, DeviceSpec, Trial
from mctskernel.core.evaluation import Evaluation, Guard, Outcome
from mctskernel.core.executor import LOCAL, CounterSet, ExecutorOptions
from mctskernel.core.kernel import Kernel
from mctskernel.core.task_file import other_starts, task_of
from mctskernel.executors.gpu_pool import GpuPool
from mctskernel.executors.tickets import Finish, Interrupt, TicketedExecutor, in_thread, run
from mctskernel.profiling.counters import DEFAULT_METRICS, METRICS, counters_for, fewer_notes
from mctskernel.profiling.emulated_verification import PARTLY, DefectCheck
from mctskernel.profiling.emulation import STAND_IN
from mctskernel.profiling.gpu.choice import Choice, chosen_gpus
from mctskernel.profiling.gpu.evaluator import GpuEvaluator
from mctskernel.profiling.gpu.worker import GPU_SERVICE, started_ahead
from mctskernel.profiling.processes.worker import Limits, Worker, compile_worker
from mctskernel.profiling.processes.worker_process import Prepared
from mctskernel.profiling.versions import package_versions

EMULATOR_SECONDS = 5.0
"""How long it may take over a kernel of the final validation."""


@dataclass(frozen=True)
class Checked:
    """What a check of the final validation found: a defect that refuses the kernel, or notes."""

    outcome: Outcome = Outcome.OK
    message: str = ""
    guard: Guard | None = None
    notes: tuple[str, ...] = ()

    def added_to(self, evaluation: Evaluation) -> Evaluation:
        evaluation = replace(evaluation, flags=(*evaluation.flags, *self.notes))
        if self.outcome is Outcome.OK:
            return evaluation
        return replace(evaluation, outcome=self.outcome, message=self.message, guard=self.guard)


ValidationCheck = Callable[[Kernel, DeviceSpec, Interrupt], Checked]
"""Looks for defects of a kernel for some seconds at the most; says what it couldn't check."""

REFUSING = frozenset({Guard.MEMORY_CHECKS, Guard.RACE_CHECKS, Guard.UNTOUCHED_INPUTS})
"""The emulator's findings that refuse a kernel here. Whether a result is right was decided on the GPU."""


def emulated(kernel: Kernel, spec: DeviceSpec, interrupt: Interrupt) -> Checked:
    """The memory errors and races that the emulator finds, and a GPU may hide. It needs no GPU."""
    opening = Worker(
        replace(spec, kind="model", trial=Trial.CHECK), limits=Limits(EMULATOR_SECONDS), opener=DefectCheck
    )
    with closing(opening) as worker, interrupt.calls(worker.interrupt):
        found = worker.evaluate(kernel)
    if found.guard in REFUSING:
        return Checked(found.outcome, f"The emulator: {found.message}", found.guard)
    if not found.ok:
        return Checked(notes=(f"The emulator could not check the kernel for races: {found.message}",))
    # It may have checked the kernel as compiled for an older GPU, or at some shapes only.
    return Checked(notes=tuple(flag for flag in found.flags if flag.startswith((STAND_IN, PARTLY))))


Likely = Callable[[int], Iterable[Kernel]]  # so many that are likely to be evaluated after the starts


def open_gpus(
    spec: DeviceSpec, workers: int, options: ExecutorOptions = LOCAL, likely: Likely | None = None
) -> GpuExecutor:
    """An executor on the GPUs of this machine that the options name. Raises TaskError and DeviceError."""
    choice, counters = _choice(options)
    return GpuExecutor(
        spec,
        workers=workers,
        gpus=choice.uuids,
        architecture=choice.gpus[0].architecture,
        metrics=METRICS[counters],
        notes=(*choice.notes, *fewer_notes(counters, options.counters)),
        likely=likely,
    )


def gpus_ahead(options: ExecutorOptions) -> AbstractContextManager[None]:
    """Begin to open the GPUs that `open_gpus` opens in this block. Raises DeviceError."""
    choice, counters = _choice(options)
    return started_ahead(choice.uuids, METRICS[counters])


def _choice(options: ExecutorOptions) -> tuple[Choice, CounterSet]:
    choice = chosen_gpus(options.gpus)
    return choice, counters_for(len(choice.gpus), options.counters)


@dataclass(frozen=True)
class Begun:
    """What of a final validation needs no GPU: a kernel's build in a new process, and its check, if any."""

    built: Future[Prepared | Evaluation]
    checked: Future[Checked] | None
    ends_check: Interrupt


def begin_validation(
    spec: DeviceSpec, kernel: Kernel, architecture: str, check: ValidationCheck | None, interrupt: Interrupt
) -> Begun:
    """Begin to build a kernel anew, unless the interrupt is set meanwhile, and to check it."""
    spec, ends_check = spec.in_final_validation, Interrupt()

    def build() -> Prepared | Evaluation:
        compiler = compile_worker(spec, architecture)
        with closing(compiler), interrupt.calls(compiler.interrupt):
            return compiler.prepare(kernel)

    checked = None if check is None else in_thread(partial(check, kernel, spec, ends_check), "check")
    return Begun(in_thread(build, "build anew"), checked, ends_check)


def validate_finally(
    spec: DeviceSpec, kernel: Begun, baseline: Begun, interrupt: Interrupt, service: str = GPU_SERVICE
) -> Evaluation:
    """Evaluate a kernel on held-out shapes on the GPU of a device, in new processes and with a new seed.

    The GPU is opened while the kernels are built. No counters are read. Raises DeviceError, also where the interrupt is
    set meanwhile.
    """
    with (
        interrupt.calls(kernel.ends_check.set),
        closing(GpuEvaluator(spec.in_final_validation, (), service)) as evaluator,
        interrupt.calls(evaluator.interrupt),
    ):
        evaluator.open()
        built, other = kernel.built.result(), baseline.built.result()
        if isinstance(other, Prepared):
            evaluator.use_baseline(other.candidate)
        evaluation = evaluator.evaluate(built) if isinstance(built, Prepared) else built
        evaluator.pause()
        if evaluation.ok and kernel.checked is not None:
            evaluation = kernel.checked.result().added_to(evaluation)
    if interrupt.is_set:
        raise DeviceError("The final validation was interrupted.")
    return evaluation


class GpuExecutor(TicketedExecutor):
    """`workers` compile workers, and a process for each GPU, which evaluates one kernel at a time.

    `gpus` are the UUIDs of GPUs of one kind; without them it is that of `spec`. Where their `architecture` is given,
    kernels are built while the GPUs are opened. The next free GPU takes the next kernel that was built, and is held
    alone meanwhile, among all processes of the machine. Times are interleaved with the starting kernel's; the final
    validation's `check` runs beside it. Kernels that are `likely` to be evaluated are built before. A GPU that is lost
    is left out from then on. Use it as a context manager, or call `close`. Not shared between threads. Raises
    TaskError, and DeviceError where no GPU can be used.
    """

    def __init__(
        self,
        spec: DeviceSpec,
        *,
        workers: int = 1,
        gpus: Sequence[str] = (),
        architecture: str = "",
        metrics: Sequence[str] = DEFAULT_METRICS,
        service: str = GPU_SERVICE,
        check: ValidationCheck | None = emulated,
        notes: Sequence[str] = (),
        likely: Likely | None = None,
    ) -> None:
        super().__init__()
        self._spec, self._metrics, self._service = spec, metrics, service
        self._check, self._notes = check, notes
        self._interrupt = Interrupt()
        self._ahead: dict[str, Begun] = {}
        self._fastest, self._lock, self._turns = math.inf, threading.Lock(), itertools.count()
        self._begun: dict[str, Future[Prepared | Evaluation]] = {}
        self._compilers: list[Worker] = []
        self._idle_compilers: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self._compile_threads = ThreadPoolExecutor(workers, "compile")
        evaluators = [GpuEvaluator(replace(spec, gpu=gpu), metrics, service) for gpu in gpus or (spec.gpu,)]
        starting = task_of(spec).starting_kernel

        def compile_for(architecture: str) -> None:
            for _ in range(workers):
                self._compilers.append(compile_worker(spec, architecture))
                self._idle_compilers.put(self._compilers[-1])
            # The other starts are evaluated next.
            self._build_ahead((starting, *other_starts(spec.task_folder, spec.language).values()))
            if likely is not None:
                in_thread(lambda: self._build_ahead(likely(workers + len(evaluators))), "build ahead")

        with ExitStack() as undo:
            undo.callback(self._close_compilers)
            self._gpus = GpuPool(evaluators, partial(compile_for, architecture) if architecture else None)
            undo.callback(self._gpus.close)
            self._opened = self._gpus.evaluators[0].opened
            if not architecture:
                compile_for(self._opened.gpu.architecture)
            self._gpus.begin(partial(_use_baseline, self._begun[starting.identity]))
            undo.pop_all()

    @property
    def capacity(self) -> int:
        """How many evaluations can be in flight: one on each GPU that is left, and one for each compile worker."""
        return len(self._compilers) + self._gpus.size

    def _build_ahead(self, kernels: Iterable[Kernel]) -> None:
        """Build kernels that may be submitted, while nothing else needs the compile workers."""
        for kernel in kernels:
            if kernel.identity not in self._begun:
                self._begun[kernel.identity] = self._compile_threads.submit(self._compile, kernel)

    def final_validation(self, kernel: Kernel, baseline: Kernel) -> Evaluation:
        """Evaluate a kernel on held-out shapes, in new processes and with a new seed; waits for it."""
        # On a free GPU, and in the thread that drives it, so that nothing else is timed there meanwhile.
        return self._gpus.run(lambda evaluator: self._validate(evaluator, kernel, baseline))

    def fingerprint(self) -> dict[str, str]:
        gpu = self._opened.gpu
        return {
            "device": "gpu",
            "gpu": gpu.name,
            UUID: UUID_SEPARATOR.join(each.opened.gpu.uuid for each in self._gpus.evaluators),
            "driver": gpu.driver,
            "architecture": gpu.architecture,
            **package_versions("nvidia-cuda-nvrtc", "cuda-bindings", "triton"),
        }

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know of this machine: why there are no counters, if there are none; lost GPUs."""
        return (*self._notes, *self._opened.notes, *self._gpus.warnings)

    def close(self) -> None:
        """Kill the processes, whatever they are doing, from any thread."""
        self.interrupt()
        self._gpus.close()
        self._close_compilers()

    def interrupt(self) -> None:
        """Kill the processes; `close` cleans up. From any thread."""
        self._interrupt.set()
        for begun in tuple(self._ahead.values()):
            begun.ends_check.set()
        for compiler in self._compilers:
            compiler.interrupt()
        for evaluator in self._gpus.evaluators:
            evaluator.interrupt()

    def _close_compilers(self) -> None:
        for compiler in self._compilers:
            compiler.interrupt()  # what is being built need not be waited for
        self._compile_threads.shutdown(cancel_futures=True)
        for compiler in self._compilers:
            compiler.close()

    def _validate(self, evaluator: GpuEvaluator, kernel: Kernel, baseline: Kernel) -> Evaluation:
        evaluator.pause()  # another process evaluates, and the next search may begin
        begun, beside = (self._ahead.get(each.identity) for each in (kernel, baseline))
        if begun is None or begun.ends_check.is_set:
            begun = self._begin_validation(kernel, self._check)
        beside = beside or self._begin_validation(baseline, None)
        spec = replace(self._spec, gpu=evaluator.opened.gpu.uuid)
        return validate_finally(spec, begun, beside, self._interrupt, self._service)

    def _begin_validation(self, kernel: Kernel, check: ValidationCheck | None) -> Begun:
        return begin_validation(self._spec, kernel, self._opened.gpu.architecture, check, self._interrupt)

    def _evaluate(self, evaluator: GpuEvaluator, prepared: Prepared, kernel: Kernel) -> Evaluation:
        evaluation = evaluator.evaluate(prepared)
        if evaluation.ok and not evaluation.quarantine:
            # As fast as the loop takes it for: beside the starting kernel.
            times = (each.seconds / (each.baseline_seconds or 1.0) for each in evaluation.timings)
            with self._lock:
                self._validate_ahead(kernel, math.prod(times))
        return evaluation

    def _validate_ahead(self, kernel: Kernel, time: float) -> None:
        """Begin with the final validation of the fastest kernel so far, on cores that compile nothing."""
        if time >= self._fastest or (os.cpu_count() or 1) <= len(self._compilers):
            return
        self._fastest = time
        for begun in self._ahead.values():
            begun.ends_check.set()
        self._ahead[kernel.identity] = self._begin_validation(kernel, self._check)

    def _compile(self, kernel: Kernel) -> Prepared | Evaluation:
        compiler = self._idle_compilers.get()
        try:
            return compiler.prepare(kernel)
        finally:
            self._idle_compilers.put(compiler)

    def _begin(self, kernel: Kernel, finish: Finish) -> None:
        turn = next(self._turns)
        self._compile_threads.submit(run, lambda: self._build(kernel, finish, turn), finish)

    def _build(self, kernel: Kernel, finish: Finish, turn: int) -> Evaluation | None:
        """Build and pass on to the GPUs; the evaluation of a kernel that can't be built."""
        begun = self._begun.pop(kernel.identity, None)
        # What waits in the queue of this thread's pool would wait for this thread.
        result = self._compile(kernel) if begun is None or begun.cancel() else begun.result()
        if isinstance(result, Evaluation):
            return result
        self._gpus.submit(lambda evaluator: self._evaluate(evaluator, result, kernel), finish, turn)
        return None


def _use_baseline(building: Future[Prepared | Evaluation], evaluator: GpuEvaluator) -> None:
    """Where it can't be built, times are interleaved with the candidate's own; its evaluation says why."""
    if building.exception() is None and isinstance(prepared := building.result(), Prepared):
        evaluator.use_baseline(prepared.candidate)
