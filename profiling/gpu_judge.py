"""Judging candidates on a GPU, from outside the process that holds it.

Seeds, expected outputs and verdicts stay here: the GPU process gets inputs, launches and machine code, and hands back
bytes, times and counters. Nothing that a candidate does to that process makes a wrong result look right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from mctskernel.core.device import DeviceError
from mctskernel.core.evaluation import Check, Evaluation, Outcome, Resources, Source, Timing
from mctskernel.core.launch_plan import ResolvedPlan
from mctskernel.core.task import Array, Task, shape_label
from mctskernel.profiling.architecture import architecture_of
from mctskernel.profiling.candidate import Candidate, RefusedError
from mctskernel.profiling.conversation import Conversation, LostError
from mctskernel.profiling.counter_diagnosis import diagnose_counters
from mctskernel.profiling.counters import REGISTERS, SHARED_BYTES, TIME, combined_counters
from mctskernel.profiling.gpu_arenas import Arena, draw_arenas
from mctskernel.profiling.gpu_protocol import (
    GPU_REPLIES,
    Broken,
    Code,
    Count,
    Counted,
    Done,
    Failed,
    GpuReply,
    GpuRequest,
    Load,
    Loaded,
    Opened,
    OpenGpu,
    Packed,
    Plan,
    PlannedLaunch,
    Ran,
    Run,
    ScratchPlace,
    Step,
    Time,
    Timed,
    Uncounted,
)
from mctskernel.profiling.gpu_timing import timing
from mctskernel.profiling.guardrails import Peaks, flags, quarantine_reason
from mctskernel.profiling.ptx_text import global_variables
from mctskernel.profiling.shared_window import SharedWindow
from mctskernel.profiling.stages import Stages
from mctskernel.profiling.verify import Case

GPU_SERVICE = "mctskernel.profiling.gpu_service:GpuService"

TIMING_SECONDS = 0.05
"""Kernel time of a candidate that is spent on one search shape; its baseline gets a share of it besides."""

RUN_SECONDS = 10.0
"""How long all verification runs may take together. What a starting kernel takes there is a thousandth of it."""

TIME_SECONDS = 20.0
COUNT_SECONDS = 20.0
PLACE_SECONDS = 60.0
MEMORY_BYTES = 6 << 30

BASELINE, CANDIDATE = 0, 1
"""The slots of the kernel that times are interleaved with, and of the one that is judged."""

Expected = TypeVar("Expected")


class GpuJudge:
    """Judges candidates of one task on the first visible GPU. For one thread, besides `interrupt`.

    `service` names what runs in the GPU process. Inputs follow from `seed`. Raises TaskError for a reference that
    fails, and DeviceError for a GPU that can't be used.
    """

    def __init__(self, task: Task, seed: int, metrics: Sequence[str], service: str = GPU_SERVICE) -> None:
        self._task = task
        self._window = SharedWindow()
        self._baseline: Candidate | None = None
        self.opened: Opened | None = None
        opening = OpenGpu(service, MEMORY_BYTES, tuple(metrics))
        # The process starts while the inputs are drawn.
        self._gpu: Conversation[GpuReply] = Conversation(
            "mctskernel.profiling.gpu_process",
            "ran the kernel",
            opening,
            GPU_REPLIES,
            self._set_up,
            shared=(self._window.fd,),
        )
        try:
            self._arenas = draw_arenas(task, seed, self._window)
        except BaseException:
            self.close()
            raise

    def open(self) -> Opened:
        """What the GPU is. Raises DeviceError."""
        self._gpu.open()
        assert self.opened is not None  # noqa: S101 - `_set_up` saw to it
        return self.opened

    def use_baseline(self, candidate: Candidate) -> None:
        """Interleave every timing with this kernel from now on, if the GPU takes it."""
        try:
            self._load(BASELINE, candidate)
        except (RefusedError, LostError):
            return
        self._baseline = candidate

    def evaluate(self, candidate: Candidate, stages: Stages) -> Evaluation:
        """Verify, time and count a kernel; the first of these that fails decides the outcome."""
        begun = Evaluation(Outcome.OK, Source.MEASURED, resources=candidate.resources, log=candidate.log)
        try:
            with stages.timed("verify"):
                self._accept(candidate, self._load(CANDIDATE, candidate))
                evaluation = self._verified(begun, candidate, self._arenas.verified)
                if evaluation.ok:
                    evaluation = self._repeated(evaluation, candidate)
            if evaluation.ok:
                evaluation = self._timed(evaluation, candidate, stages)
            if evaluation.ok:
                with stages.timed("counters"):
                    evaluation = self._counted(evaluation, candidate)
                evaluation = self._guarded(evaluation)
        except RefusedError as refusal:
            evaluation = refusal.evaluation(Source.MEASURED)
        except LostError as error:
            log = "\n".join(text for text in (begun.log, error.log) if text)
            evaluation = replace(begun, outcome=error.outcome, message=error.message, log=log)
        return replace(evaluation, stage_seconds=stages.seconds)

    def final_check(self, candidate: Candidate) -> tuple[Check, ...]:
        """The checks on the held-out cases, up to the first that fails."""
        try:
            self._accept(candidate, self._load(CANDIDATE, candidate))
            begun = Evaluation(Outcome.OK, Source.MEASURED)
            return self._verified(begun, candidate, self._arenas.held_out).checks
        except (RefusedError, LostError) as error:
            return (Check("", 0, passed=False, error=float("inf"), message=error.message),)

    def outputs(self, candidate: Candidate) -> list[tuple[Case, dict[str, Array]]]:
        """What the kernel leaves in its outputs at each verification case, whether that is right or not.

        Raises RefusedError and LostError.
        """
        self._accept(candidate, self._load(CANDIDATE, candidate))
        arenas = self._arenas.verified
        steps = tuple(Step(self._plan(CANDIDATE, candidate, arena), arena.reads) for arena in arenas)
        self._ask(Run(steps), RUN_SECONDS, Ran, candidate)
        return [(arena.sample.case, arena.outputs()) for arena in arenas]

    def interrupt(self) -> None:
        """End the GPU process for good, from any thread."""
        self._gpu.interrupt()

    def close(self) -> None:
        """End the GPU process and give the tensors back."""
        self._gpu.close()
        self._window.close()

    def _set_up(self, reply: GpuReply) -> None:
        """Bring a new process to where the last one was."""
        match reply:
            case Opened():
                self.opened = reply
            case Broken(message):
                raise DeviceError(message)
            case _:
                raise LostError(Outcome.CRASH, "The GPU process answered what it wasn't asked.")
        for arena in self._arenas:
            match self._gpu.ask(arena.place, PLACE_SECONDS):
                case Done():
                    pass
                case Failed(message):
                    raise DeviceError(
                        f"The GPU has no room for the tensors of '{self._task.name}' at {shape_label(arena.shape)}: "
                        f"{message} Perhaps another process is using it."
                    )
                case _:
                    raise LostError(Outcome.CRASH, "The GPU process answered what it wasn't asked.")
        if self._baseline is not None:
            self._load(BASELINE, self._baseline)

    def _load(self, slot: int, candidate: Candidate) -> Loaded:
        return self._ask(Load(slot, _codes(candidate)), RUN_SECONDS, Loaded, candidate)

    def _accept(self, candidate: Candidate, loaded: Loaded) -> None:
        """Raise RefusedError for a launch that asks for more than the GPU has."""
        gpu = self.open().gpu
        for launch, index in candidate.built:
            what = f"The launch of '{launch.kernel}'"
            most = loaded.max_threads.get(candidate.entry_of(launch), launch.threads)
            if launch.threads > most:
                reason = (
                    f"has blocks of {launch.threads} threads; its registers and launch bounds allow {most}."
                )
                raise RefusedError(Outcome.LAUNCH_ERROR, f"{what} {reason}", candidate)
            static = candidate.builds[index].resources_of(launch.kernel).shared_bytes
            if static + launch.shared_bytes > gpu.max_shared_bytes:
                reason = (
                    f"takes {static + launch.shared_bytes} bytes of shared memory a block; {gpu.name} has "
                    f"{gpu.max_shared_bytes}."
                )
                raise RefusedError(Outcome.LAUNCH_ERROR, f"{what} {reason}", candidate)

    def _verified(self, evaluation: Evaluation, candidate: Candidate, arenas: Sequence[Arena]) -> Evaluation:
        steps = [Step(self._plan(CANDIDATE, candidate, arena), arena.reads) for arena in arenas]
        ran = self._ask(Run(tuple(steps)), RUN_SECONDS, Ran, candidate)
        checks: list[Check] = []
        for index, arena in enumerate(arenas):
            checks.append(_overrun(arena, ran.overruns[index]) if index in ran.overruns else arena.verdict())
            if not checks[-1].passed:
                break
        return _with_checks(evaluation, checks)

    def _repeated(self, evaluation: Evaluation, candidate: Candidate) -> Evaluation:
        """Remark on a kernel whose last and largest case comes out differently when it is run again."""
        arena = self._arenas.verified[-1]
        before = arena.output_bytes()
        step = Step(self._plan(CANDIDATE, candidate, arena), arena.reads)
        self._ask(Run((step,)), RUN_SECONDS, Ran, candidate)
        if arena.output_bytes() == before:
            return evaluation
        remark = (
            f"Two runs on the same inputs differ, at {arena.sample.case.label}: the result depends on chance."
        )
        return replace(evaluation, flags=(*evaluation.flags, remark))

    def _timed(self, evaluation: Evaluation, candidate: Candidate, stages: Stages) -> Evaluation:
        timings: list[Timing] = []
        checks: list[Check] = []
        for arena in self._arenas.timed:
            with stages.timed("time"):
                timed = self._ask(self._time(candidate, arena), TIME_SECONDS, Timed, candidate)
            timings.append(timing(shape_label(arena.shape), timed.samples, timed.baseline))
            with stages.timed("verify"):
                checks.append(arena.verdict())
            if not checks[-1].passed:
                break
        return replace(_with_checks(evaluation, checks), timings=tuple(timings))

    def _time(self, candidate: Candidate, arena: Arena) -> Time:
        plan = self._plan(CANDIDATE, candidate, arena)
        baseline = self._plan(BASELINE, self._baseline, arena) if self._baseline is not None else plan
        return Time(plan, baseline, TIMING_SECONDS, arena.reads)

    def _counted(self, evaluation: Evaluation, candidate: Candidate) -> Evaluation:
        """With counters of one run at the first search shape, and what they say; without, where there are none."""
        counters = _compiled(candidate.resources)
        if not self.open().counters:
            plan = self._plan(CANDIDATE, candidate, self._arenas.timed[0])
            reply = self._ask(Count(plan), COUNT_SECONDS, (Counted, Uncounted), candidate)
            if isinstance(reply, Counted):
                counters |= combined_counters(reply.launches)
        evaluation = replace(evaluation, counters=counters)
        architecture = architecture_of(self.open().gpu.architecture)
        if architecture is None or TIME not in counters:
            return evaluation
        return replace(evaluation, diagnosis=diagnose_counters(counters, architecture))

    def _guarded(self, evaluation: Evaluation) -> Evaluation:
        reason = quarantine_reason(self._task, evaluation.timings, self._peaks())
        return replace(evaluation, quarantine=reason, flags=(*evaluation.flags, *flags(evaluation)))

    def _peaks(self) -> Peaks:
        opened = self.open()
        return Peaks(
            opened.gpu.dram_bytes_per_second, opened.ceilings.tensor_flops_per_second, opened.gpu.l2_bytes
        )

    def _plan(self, slot: int, candidate: Candidate, arena: Arena) -> Plan:
        resolved = candidate.at(self._task, arena.shape)
        scratch = tuple(ScratchPlace(each.name, each.nbytes, each.zero) for each in resolved.scratch)
        return Plan(slot, arena.index, _launches(candidate, resolved, self._task), scratch)

    def _ask(
        self,
        request: GpuRequest,
        seconds: float,
        expected: type[Expected] | tuple[type[Expected], ...],
        candidate: Candidate,
    ) -> Expected:
        """The reply that the request should get. Raises RefusedError for what the GPU refused, and LostError."""
        reply = self._gpu.ask(request, seconds)
        if isinstance(reply, expected):
            return reply
        match reply:
            case Failed(message, lost):
                if lost:
                    self._gpu.renew()
                raise RefusedError(Outcome.CRASH if lost else Outcome.LAUNCH_ERROR, message, candidate)
            case Broken(message):
                raise DeviceError(message)
            case _:
                self._gpu.renew()
                raise LostError(Outcome.CRASH, "The GPU process answered what it wasn't asked.")


def _codes(candidate: Candidate) -> tuple[Code, ...]:
    return tuple(
        Code(made.cubin, tuple(made.entries.values()), global_variables(made.ptx))
        for made in candidate.builds
    )


def _launches(candidate: Candidate, resolved: ResolvedPlan, task: Task) -> tuple[PlannedLaunch, ...]:
    buffers = dict.fromkeys((*task.buffer_names, *(each.name for each in resolved.scratch)), 0)
    return tuple(
        PlannedLaunch(
            code=candidate.index_of(launch),
            entry=candidate.entry_of(launch),
            grid=launch.grid,
            block=launch.block,
            shared_bytes=launch.shared_bytes,
            arguments=tuple(
                argument if isinstance(argument, str) else Packed(packed)
                for argument, packed in zip(
                    launch.arguments, candidate.arguments(launch, buffers), strict=True
                )
            ),
        )
        for launch in resolved.launches
    )


def _with_checks(evaluation: Evaluation, checks: Sequence[Check]) -> Evaluation:
    found = replace(evaluation, checks=(*evaluation.checks, *checks))
    if checks[-1].passed:
        return found
    return replace(found, outcome=Outcome.WRONG_RESULT, message=checks[-1].message)


def _compiled(resources: Sequence[Resources]) -> dict[str, float]:
    """What the compiler's report says in place of counters: the most of any kernel."""
    return {
        REGISTERS: float(max(each.registers for each in resources)),
        SHARED_BYTES: float(max(each.shared_bytes for each in resources)),
    }


def _overrun(arena: Arena, sentence: str) -> Check:
    case = arena.sample.case
    message = f"At {case.label} (seed {case.seed}), {sentence}"
    return Check(shape_label(arena.shape), case.seed, passed=False, error=float("inf"), message=message)
