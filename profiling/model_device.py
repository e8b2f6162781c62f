"""The `model` device: judges kernels on a machine without a GPU.

The compiler's PTX is emulated, which decides whether the kernel is right; a model prices its machine code on
the named GPU. Every number is modelled, and says so.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from dataclasses import replace

from mctskernel.core.device import DeviceError
from mctskernel.core.evaluation import Check, Evaluation, Outcome, Source, Timing
from mctskernel.core.kernel import Kernel
from mctskernel.core.launch_plan import LaunchPlanError, plan_of, resolve
from mctskernel.core.task import Task, shape_label
from mctskernel.profiling.architecture import Architecture, UnknownArchitectureError, load_architecture
from mctskernel.profiling.build import BuildFailure, build
from mctskernel.profiling.emulation import Candidate, Emulated, emulate
from mctskernel.profiling.emulator import UnsupportedPtx, parse_ptx
from mctskernel.profiling.guardrails import Peaks, flags, floor_seconds, quarantine_reason
from mctskernel.profiling.launch_limits import check_launch
from mctskernel.profiling.sass import DisassemblerError, PendingDisassembly, start_disassembly
from mctskernel.profiling.source_rules import breach
from mctskernel.profiling.stages import Stages
from mctskernel.profiling.verify import Case, draw_cases, draw_held_out_cases


class _RefusedError(Exception):
    """A kernel that got no further; carries why."""

    def __init__(self, outcome: Outcome, message: str, log: str = "") -> None:
        super().__init__(message)
        self.evaluation = Evaluation(outcome, Source.MODELLED, message, log=log)


class ModelDevice:
    """Judges kernels of one task as the named GPU would, as far as an emulator and a model can tell.

    Raises DeviceError for an architecture that isn't known. Inputs follow from `seed` alone.
    """

    def __init__(self, task: Task, architecture: str = "H100", seed: int = 0) -> None:
        try:
            self._gpu = load_architecture(architecture)
        except UnknownArchitectureError as error:
            raise DeviceError(str(error)) from error
        self._task = task
        self._cases = draw_cases(task, task.verify_shapes, seed)
        self._held_out = draw_held_out_cases(task, seed)

    def evaluate(self, kernel: Kernel) -> Evaluation:
        """Guard, build, verify and price one kernel; the first of these that fails decides the outcome."""
        stages = Stages()
        try:
            evaluation = self._judge(self._build(kernel, stages), stages)
        except _RefusedError as refusal:
            evaluation = refusal.evaluation
        return replace(evaluation, stage_seconds=stages.seconds)

    def final_check(self, kernel: Kernel) -> tuple[Check, ...]:
        """Verify on the held-out shapes, or on the verify shapes where there are none, with fresh seeds."""
        try:
            return self._verify(self._build(kernel, Stages()), self._held_out).checks
        except _RefusedError as refusal:
            return (Check("", 0, passed=False, error=float("inf"), message=str(refusal)),)

    def fingerprint(self) -> dict[str, str]:
        """What a modelled time depends on: the GPU that is modelled, and the versions of what models it."""
        packages = ("mctskernel", "nvidia-cuda-nvrtc", "nvidia-cuda-nvdisasm", "numpy")
        versions = {name: importlib.metadata.version(name) for name in packages}
        return {"device": "model", "gpu": self._gpu.name, "architecture": self._gpu.architecture, **versions}

    def _build(self, kernel: Kernel, stages: Stages) -> Candidate:
        if reason := breach(kernel):
            raise _RefusedError(Outcome.REJECTED, reason)
        try:
            plan = plan_of(kernel)
        except LaunchPlanError as error:
            raise _RefusedError(Outcome.LAUNCH_ERROR, str(error)) from error
        with stages.timed("build"):
            made = build(kernel, plan, self._gpu.architecture)
        if isinstance(made, BuildFailure):
            raise _RefusedError(Outcome.BUILD_ERROR, made.message, made.log)
        try:
            candidate = Candidate(kernel, plan, made, parse_ptx(made.ptx))
            self._check_launches(candidate)
        except UnsupportedPtx as error:
            message = f"The emulator doesn't know {error}, so the kernel can't be verified here."
            raise _RefusedError(Outcome.REJECTED, message, made.log) from error
        except LaunchPlanError as error:
            raise _RefusedError(Outcome.LAUNCH_ERROR, str(error), made.log) from error
        return candidate

    def _check_launches(self, candidate: Candidate) -> None:
        task = self._task
        for shape in (*task.search_shapes, *task.verify_shapes, *task.held_out_shapes):
            resolved = resolve(candidate.plan, task.names(shape, candidate.kernel), task.buffer_names)
            for launch in resolved.launches:
                entry = candidate.module.entries[candidate.build.entries[launch.kernel]]
                check_launch(
                    launch, candidate.build.resources_of(launch.kernel), entry.max_threads, self._gpu
                )

    def _verify(self, candidate: Candidate, cases: Sequence[Case]) -> Emulated:
        try:
            return emulate(self._task, candidate, cases)
        except LaunchPlanError as error:
            raise _RefusedError(Outcome.LAUNCH_ERROR, str(error), candidate.build.log) from error

    def _judge(self, candidate: Candidate, stages: Stages) -> Evaluation:
        try:
            with start_disassembly(candidate.build.cubin) as disassembly:
                with stages.timed("verify"):
                    verified = self._verify(candidate, self._cases)
                evaluation = Evaluation(
                    verified.outcome,
                    Source.MODELLED,
                    verified.message,
                    checks=verified.checks,
                    resources=candidate.build.resources,
                    log=candidate.build.log,
                )
                if not evaluation.ok:
                    return evaluation
                with stages.timed("model"):
                    evaluation = self._price(candidate, disassembly, evaluation)
        except DisassemblerError as error:
            raise DeviceError(str(error)) from error
        reason = quarantine_reason(self._task, evaluation.timings, _peaks(self._gpu))
        return replace(evaluation, quarantine=reason, flags=flags(evaluation))

    def _price(
        self, candidate: Candidate, disassembly: PendingDisassembly, evaluation: Evaluation
    ) -> Evaluation:
        # The floor alone, until the model of the machine code takes its place.
        seconds = [floor_seconds(self._task, shape, _peaks(self._gpu)) for shape in self._task.search_shapes]
        timings = tuple(
            Timing(shape_label(shape), each, each, each)
            for shape, each in zip(self._task.search_shapes, seconds, strict=True)
        )
        return replace(evaluation, timings=timings)


def _peaks(gpu: Architecture) -> Peaks:
    flops = 2 * gpu.throughput.tensor_fma * gpu.chip.sms * gpu.chip.clock_hz
    return Peaks(gpu.memory.dram_bytes_per_second, flops, gpu.memory.l2_bytes)
