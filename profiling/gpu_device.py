"""The `gpu` device: builds, verifies and times kernels on the first visible GPU."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import numpy as np

from mctskernel.core.device import DeviceError, DeviceLostError
from mctskernel.core.dtypes import numpy_dtype
from mctskernel.core.evaluation import Check, Evaluation, Outcome, Source, Timing
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Array, Task, Tensor, shape_label
from mctskernel.profiling.architecture import known_architectures, load_architecture
from mctskernel.profiling.candidate import RefusedError, prepare
from mctskernel.profiling.cuda_driver import (
    CudaError,
    DeviceBuffer,
    Gpu,
    LoadedModule,
    Stopwatch,
    open_gpu,
    synchronize,
)
from mctskernel.profiling.gpu_plan import Arena, BoundPlan, Loaded, loaded, placed
from mctskernel.profiling.gpu_timing import time_interleaved
from mctskernel.profiling.guardrails import Peaks, flags, quarantine_reason
from mctskernel.profiling.sampling import Sample, sampled, whole
from mctskernel.profiling.stages import Stages
from mctskernel.profiling.verify import Case, draw_case, draw_cases, draw_held_out_cases, judge, poison
from mctskernel.profiling.versions import package_versions

TIMING_SECONDS = 0.1
"""Kernel time that is spent on one shape, candidate and baseline together."""


class GpuDevice:
    """Judges kernels of one task on a GPU. Raises DeviceError when there is none that can be used.

    Inputs follow from `seed` alone. The baseline that times are interleaved with is the starting kernel. A
    kernel that loses the CUDA context raises DeviceLostError: nothing more can be judged in this process.
    """

    def __init__(self, task: Task, seed: int = 0) -> None:
        self._task = task
        self._gpu = open_gpu()
        self._cases = draw_cases(task, task.verify_shapes, seed)
        self._held_out = draw_held_out_cases(task, seed)
        self._stopwatch = Stopwatch()
        # Twice the cache, so that filling it leaves nothing of the tensors there.
        self._flush = DeviceBuffer(2 * self._gpu.l2_bytes)
        self._kept = ExitStack()
        self._timed = [draw_case(task, shape, seed) for shape in task.search_shapes]
        self._arenas = [self._arena(case) for case in self._timed]
        self._rows = np.random.default_rng(seed)
        self._baseline: Loaded | None = None

    def evaluate(self, kernel: Kernel) -> Evaluation:
        """Guard, build, verify and time one kernel; the first of these that fails decides the outcome."""
        stages = Stages()
        try:
            evaluation = self._judge(kernel, stages)
        except RefusedError as refusal:
            evaluation = refusal.evaluation(Source.MEASURED)
        except CudaError as error:
            evaluation = replace(_failure(error), stage_seconds=stages.seconds)
            if error.sticky:
                raise DeviceLostError(evaluation) from error
        return replace(evaluation, stage_seconds=stages.seconds)

    def final_check(self, kernel: Kernel) -> tuple[Check, ...]:
        """Verify on the held-out shapes, or on the verify shapes where there are none, with fresh seeds."""
        try:
            candidate = prepare(self._task, kernel, self._gpu.architecture, Stages())
            with loaded(self._task, candidate, self._gpu) as ready:
                return self._verify(ready, self._held_out)
        except RefusedError as refusal:
            return (_failed_check(refusal.message),)
        except CudaError as error:
            failure = _failure(error)
            failure = replace(failure, checks=(_failed_check(failure.message),))
            if error.sticky:
                raise DeviceLostError(failure) from error
            return failure.checks

    def fingerprint(self) -> dict[str, str]:
        """The GPU, its driver and what compiles for it."""
        return {
            "device": "gpu",
            "gpu": self._gpu.name,
            "uuid": self._gpu.uuid,
            "driver": self._gpu.driver,
            "architecture": self._gpu.architecture,
            **package_versions("nvidia-cuda-nvrtc", "cuda-bindings"),
        }

    def _judge(self, kernel: Kernel, stages: Stages) -> Evaluation:
        candidate = prepare(self._task, kernel, self._gpu.architecture, stages)
        with loaded(self._task, candidate, self._gpu) as ready:
            with stages.timed("verify"):
                checks = self._verify(ready, self._cases)
            evaluation = Evaluation(
                Outcome.OK if checks[-1].passed else Outcome.WRONG_RESULT,
                Source.MEASURED,
                checks[-1].message,
                checks=checks,
                resources=candidate.resources,
                log=candidate.log,
            )
            if not evaluation.ok:
                return evaluation
            with stages.timed("time"):
                timings = tuple(self._time(ready, arena) for arena in self._arenas)
            with stages.timed("verify"):
                after = self._verify_timed(ready)
            checks = (*checks, *after)
            if not after[-1].passed:
                outcome, message = Outcome.WRONG_RESULT, after[-1].message
                return replace(evaluation, outcome=outcome, message=message, checks=checks)
        reason = quarantine_reason(self._task, timings, _peaks(self._gpu))
        evaluation = replace(evaluation, checks=checks, timings=timings, quarantine=reason)
        return replace(evaluation, flags=flags(evaluation))

    def _verify(self, ready: Loaded, cases: Sequence[Case]) -> tuple[Check, ...]:
        """The checks up to the first that fails."""
        checks: list[Check] = []
        for case in cases:
            checks.append(_run_case(self._task, ready, case))
            if not checks[-1].passed:
                break
        return tuple(checks)

    def _verify_timed(self, ready: Loaded) -> tuple[Check, ...]:
        """Check the kernel once more on the inputs that were timed: random rows of what it leaves there."""
        checks: list[Check] = []
        for case, arena in zip(self._timed, self._arenas, strict=True):
            for tensor in self._task.outputs:
                arena.buffers[tensor.name].write(poison(tensor.dtype, tensor.extents(case.shape)))
            checks.append(_run(ready, self._task, arena, sampled(case, self._rows)))
            if not checks[-1].passed:
                break
        return tuple(checks)

    def _time(self, ready: Loaded, arena: Arena) -> Timing:
        with ready.bound(self._task, arena) as plan, self._ready_baseline().bound(self._task, arena) as start:
            return time_interleaved(
                shape_label(arena.shape),
                lambda: self._seconds(plan),
                lambda: self._seconds(start),
                TIMING_SECONDS,
            )

    def _seconds(self, plan: BoundPlan) -> float:
        self._flush.fill(0)
        synchronize()
        self._stopwatch.start()
        plan.run()
        return self._stopwatch.stop()

    def _ready_baseline(self) -> Loaded:
        """The starting kernel, kept on the GPU. Asked for once a candidate has passed, the start before all."""
        if self._baseline is None:
            candidate = prepare(self._task, self._task.starting_kernel, self._gpu.architecture, Stages())
            self._baseline = Loaded(candidate, LoadedModule(candidate.builds[0].cubin))
        return self._baseline

    def _arena(self, case: Case) -> Arena:
        """The tensors at a search shape, kept on the GPU for the device's life."""
        try:
            return self._kept.enter_context(placed(self._task, case.shape, case.inputs))
        except CudaError as error:
            raise DeviceError(
                f"The GPU has no room for the tensors of '{self._task.name}' at {case.label}: {error}. "
                "Perhaps another process is using it."
            ) from error


def _run_case(task: Task, ready: Loaded, case: Case) -> Check:
    with placed(task, case.shape, case.inputs) as arena:
        return _run(ready, task, arena, whole(case))


def _run(ready: Loaded, task: Task, arena: Arena, sample: Sample) -> Check:
    """Run once on what the arena holds, and judge the sample's rows of what it holds afterwards."""
    with ready.bound(task, arena) as plan:
        plan.run()
        synchronize()

    def rows(tensor: Tensor) -> Array:
        extents = tensor.extents(arena.shape)
        array = arena.buffers[tensor.name].read(
            numpy_dtype(tensor.dtype), int(np.prod(extents, dtype=np.int64))
        )
        return sample.rows_of(tensor.name, array.reshape(extents))

    outputs = {tensor.name: rows(tensor) for tensor in task.outputs}
    return judge(sample.case, outputs, {tensor.name: rows(tensor) for tensor in task.inputs})


def _peaks(gpu: Gpu) -> Peaks:
    """The roofline's ceilings; no arithmetic ceiling for a GPU whose constants aren't known."""
    known = (load_architecture(name) for name in known_architectures())
    flops = [
        2 * each.throughput.tensor_fma * each.chip.sms * each.chip.clock_hz
        for each in known
        if each.architecture == gpu.architecture
    ]
    return Peaks(gpu.dram_bytes_per_second, max(flops, default=float("inf")), gpu.l2_bytes)


def _failure(error: CudaError) -> Evaluation:
    outcome = Outcome.CRASH if error.sticky else Outcome.LAUNCH_ERROR
    return Evaluation(outcome, Source.MEASURED, f"The GPU refused the kernel: {error}.")


def _failed_check(message: str) -> Check:
    return Check("", 0, passed=False, error=float("inf"), message=message)
