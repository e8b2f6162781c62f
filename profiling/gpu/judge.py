"""Judging candidates on a GPU, from outside the process that holds it.

Seeds, expected outputs and verdicts stay here. Nothing that a candidate does to the process that runs it makes a wrong
result look right.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace

from mctskernel.core.evaluation import Check, Evaluation, GpuState, Guard, Outcome, Source, Timing
from mctskernel.core.launch_plan import LaunchPlanError
from mctskernel.core.task import Array, Task, shape_label
from mctskernel.profiling.architecture import architecture_of
from mctskernel.profiling.candidate import Candidate, RefusedError
from mctskernel.profiling.ceilings import Ceilings, documented_ceilings, highest
from mctskernel.profiling.counter_diagnosis import diagnose_launches, widest_access
from mctskernel.profiling.counters import REGISTERS, SHARED_BYTES, TIME, combined_counters
from mctskernel.profiling.gpu.accounting import finding, strays
from mctskernel.profiling.gpu.arenas import VARIANTS, Arena
from mctskernel.profiling.gpu.protocol import Loaded, Opened, Timed
from mctskernel.profiling.gpu.session import GPU_SERVICE, GpuSession
from mctskernel.profiling.gpu.state import are_alike
from mctskernel.profiling.gpu.timing import timing
from mctskernel.profiling.guardrails import (
    chance_remark,
    flags,
    outside_reason,
    quarantine_reason,
    worn_check,
)
from mctskernel.profiling.launch_limits import check_block
from mctskernel.profiling.processes.conversation import LostError
from mctskernel.profiling.processes.kept_memory import keep_freed_memory
from mctskernel.profiling.ptx_text import variables
from mctskernel.profiling.roofline import roofline
from mctskernel.profiling.stages import Stages
from mctskernel.profiling.verify import Case

TIMING_SECONDS = 0.05
"""Kernel time of a candidate that is spent on one search shape; its baseline gets a share of it besides."""

RECHECKS = 8
"""How many runs are judged, picked at random, of a kernel whose results differ from run to run. One that is wrong in
half of them, as few as can move a median, passes once in 256 times."""

WEARING_RUNS = 300
"""How many runs a kernel with variables makes in a row before it is looked at once more."""

BASELINE_RUNS = 31
"""The baseline's time is the median of so many runs, the latest ones at the clock of now: few of them fall on one
candidate, and a hiccup there would make that candidate look fast. They lie seconds apart, so what drifts still drifts
for both. A GPU's first candidate has all of them beside it: from then on its times compare with other GPUs'."""

FEWEST_BASELINE_RUNS = 3
"""How many of them each candidate has beside it at least."""


class GpuJudge:
    """Judges candidates of one task on one GPU. For one thread, besides `interrupt`.

    `service` names what runs in the GPU process, `gpu` is the GPU's UUID, empty for the first visible one. Inputs
    follow from `seed`. A kernel is counted within `counting`, which may wait until it is this GPU's turn. Raises
    TaskError for a reference that fails, and DeviceError for a GPU that can't be used.
    """

    def __init__(
        self,
        task: Task,
        seed: int,
        metrics: Sequence[str],
        service: str = GPU_SERVICE,
        gpu: str = "",
        *,
        counting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        keep_freed_memory()
        self._task = task
        self._counting = counting
        self._baseline_runs: dict[int, deque[tuple[float, GpuState | None]]] = {}
        self._threads = ThreadPoolExecutor(VARIANTS, "judge")
        self._gpu = GpuSession(task, seed, metrics, service, gpu)
        self._arenas = self._gpu.arenas

    @property
    def opened(self) -> Opened:
        """What the GPU is. Raises DeviceError."""
        return self._gpu.opened

    @property
    def pid(self) -> int:
        """The number of the process that holds the GPU."""
        return self._gpu.pid

    def use_baseline(self, candidate: Candidate) -> None:
        """Interleave every timing with this kernel from now on, if the GPU takes it; its evaluation tells if not."""
        with suppress(RefusedError, LostError):
            self._gpu.load_baseline(candidate)

    def evaluate(self, candidate: Candidate, stages: Stages) -> Evaluation:
        """Verify, time and count a kernel; the first of these that fails decides the outcome."""
        begun = Evaluation(Outcome.OK, Source.MEASURED, resources=candidate.resources, log=candidate.log)
        try:
            evaluation = self._judged(begun, candidate, stages)
        except RefusedError as refusal:
            evaluation = refusal.evaluation(Source.MEASURED)
        except LostError as error:
            log = "\n".join(text for text in (begun.log, error.log) if text)
            evaluation = replace(
                begun, outcome=error.outcome, message=error.message, log=log, guard=error.guard
            )
        return replace(evaluation, stage_seconds=stages.seconds)

    def outputs(self, candidate: Candidate) -> list[tuple[Case, dict[str, Array]]]:
        """What the kernel leaves in its outputs at each verification case, whether that is right or not.

        Raises RefusedError and LostError.
        """
        self._accept(candidate, self._gpu.load(candidate))
        self._gpu.run(candidate, self._arenas.verified)
        return [(arena.case, arena.outputs()) for arena in self._arenas.verified]

    def release_counters(self) -> None:
        """Let other processes count on this GPU."""
        self._gpu.release_counters()

    def interrupt(self) -> None:
        """End the GPU process for good, from any thread."""
        self._gpu.interrupt()

    def close(self) -> None:
        """End the GPU process and give the tensors back."""
        self._threads.shutdown(cancel_futures=True)
        self._gpu.close()

    def _judged(self, evaluation: Evaluation, candidate: Candidate, stages: Stages) -> Evaluation:
        with stages.timed("verify"):
            self._accept(candidate, self._gpu.load(candidate))
            evaluation = self._verified(evaluation, candidate, self._arenas.verified)
            if evaluation.ok:
                evaluation = self._repeated(evaluation, candidate)
            if evaluation.ok and any(variables(made.ptx) for made in candidate.builds):
                evaluation = self._worn(evaluation, candidate)
        if evaluation.ok:
            evaluation = self._timed(evaluation, candidate, stages)
        if evaluation.ok:
            evaluation = self._counted(evaluation, candidate, stages)
        return self._guarded(evaluation, candidate) if evaluation.ok else evaluation

    def _accept(self, candidate: Candidate, loaded: Loaded) -> None:
        """Raise RefusedError for a launch that asks for more than the GPU has."""
        gpu = self.opened.gpu
        for launch, index in candidate.built:
            resources = candidate.builds[index].resources_of(launch.kernel)
            most = loaded.max_threads.get(candidate.entry_of(launch))
            try:
                check_block(launch, resources, most, gpu.max_shared_bytes, gpu.name)
            except LaunchPlanError as error:
                raise RefusedError(
                    Outcome.LAUNCH_ERROR, Guard.LAUNCH_LIMITS, str(error), candidate
                ) from error

    def _verified(self, evaluation: Evaluation, candidate: Candidate, arenas: Sequence[Arena]) -> Evaluation:
        ran = self._gpu.run(candidate, arenas)
        checks: list[Check] = []
        for index, arena in enumerate(arenas):
            overrun = ran.overruns.get(index)
            checks.append(_refused(arena, overrun, Guard.GUARD_BYTES) if overrun else arena.verdict())
            if not checks[-1].passed:
                break
        return _with_checks(evaluation, checks)

    def _repeated(self, evaluation: Evaluation, candidate: Candidate) -> Evaluation:
        """Run the last and largest case again: a result that depends on chance is remarked on, or refused."""
        arena = self._arenas.verified[-1]
        before = arena.output_bytes()
        self._gpu.run(candidate, (arena,))
        remark = chance_remark(before, arena.output_bytes(), arena.case.label)
        if not remark:
            return evaluation
        if self._task.deterministic:
            return replace(evaluation, outcome=Outcome.WRONG_RESULT, message=remark, guard=Guard.REPETITION)
        return replace(evaluation, flags=(*evaluation.flags, remark))

    def _worn(self, evaluation: Evaluation, candidate: Candidate) -> Evaluation:
        """Run the largest case after many runs as a program makes them, which puts no variable back in between."""
        before, arena = self._arenas.verified[-2:][0], self._arenas.verified[-1]
        ran = self._gpu.wear(candidate, before, WEARING_RUNS, arena)
        overrun = ran.overruns.get(0)
        check = _refused(arena, overrun, Guard.GUARD_BYTES) if overrun else arena.verdict()
        return _with_checks(evaluation, [worn_check(check, WEARING_RUNS)])

    def _timed(self, evaluation: Evaluation, candidate: Candidate, stages: Stages) -> Evaluation:
        """Time at every search shape; what every timed run left there must be right."""
        timings: list[Timing] = []
        checks: list[Check] = []
        remarks: list[str] = []
        for arena in self._arenas.timed:
            with stages.timed("time"):
                timed = self._gpu.time(candidate, arena, TIMING_SECONDS, self._fewest_baseline(arena))
            # Digests are taken among the timed runs, but they are verification.
            stages.add({"time": -timed.digest_seconds, "verify": timed.digest_seconds})
            label = shape_label(arena.shape)
            timings.append(
                timing(label, timed.samples, self._recent_baseline(arena, timed), timed.conditions)
            )
            if timed.disturbed:
                remarks.append(f"At {label} its time is less certain than others: {timed.disturbed}.")
            with stages.timed("verify"):
                found, remark = self._accounted(candidate, arena, timed)
            checks += found
            remarks += [remark] if remark else []
            if not checks[-1].passed:
                break
        evaluation = replace(
            evaluation,
            timings=tuple(timings),
            flags=(*evaluation.flags, *remarks),
            gpu=self.opened.gpu.uuid,
        )
        return _with_checks(evaluation, checks)

    def _accounted(self, candidate: Candidate, arena: Arena, timed: Timed) -> tuple[list[Check], str]:
        """The checks of the timed runs at one shape, up to the first that fails, and a remark."""
        if found := finding(timed):
            return [_refused(arena, found.sentence, found.guard)], ""
        checks = list(self._threads.map(arena.verdict, range(len(arena.variants))))
        wrong = [check for check in checks if not check.passed]
        different = strays(timed)
        if wrong:
            return [replace(wrong[0], guard=Guard.TIMED_OUTPUTS)], ""
        if not different:
            return checks[:1], ""
        remark = (
            f"At {arena.case.label} {different} of {len(timed.runs)} timed runs left other bytes than the one on the "
            f"same inputs that was judged"
        )
        if self._task.deterministic:
            return [_refused(arena, f"{remark}: the result depends on chance.", Guard.REPETITION)], ""
        for _ in range(RECHECKS):
            again = self._gpu.recheck(candidate, arena)
            if again.overrun or not again.run.inputs_kept:
                return [
                    _refused(arena, again.overrun or "an input was changed in place.", Guard.GUARD_BYTES)
                ], ""
            check = arena.verdict(again.run.variant)
            if not check.passed:
                message = f"{check.message} That was one of the timed runs, picked at random."
                return [replace(check, message=message, guard=Guard.TIMED_OUTPUTS)], ""
        return checks[:1], f"{remark}; {RECHECKS} more runs, picked at random, were right."

    def _fewest_baseline(self, arena: Arena) -> int:
        """As many as its time lacks, if the clock is still that of the last candidate."""
        if not self._gpu.has_baseline:
            return FEWEST_BASELINE_RUNS
        return max(FEWEST_BASELINE_RUNS, BASELINE_RUNS - len(self._alike(arena)))

    def _alike(self, arena: Arena) -> tuple[float, ...]:
        """The latest runs of the baseline at the clock of the last ones."""
        recent = self._baseline_runs.get(arena.index) or deque()
        return tuple(seconds for seconds, then in recent if are_alike(then, recent[-1][1]))

    def _recent_baseline(self, arena: Arena, timed: Timed) -> tuple[float, ...]:
        if not self._gpu.has_baseline or timed.disturbed:
            return timed.baseline
        now = timed.conditions.before if timed.conditions is not None else None
        recent = self._baseline_runs.setdefault(arena.index, deque(maxlen=BASELINE_RUNS))
        recent.extend((seconds, now) for seconds in timed.baseline)
        return self._alike(arena)

    def _counted(self, evaluation: Evaluation, candidate: Candidate, stages: Stages) -> Evaluation:
        """With counters of one run at the first search shape, and what they say; without, where there are none."""
        counters = _compiled(candidate)
        if self.opened.counters:
            return replace(evaluation, counters=counters)
        with self._counting(), stages.timed("counters"):
            counted = self._gpu.count(candidate, self._arenas.timed[0])
        if counted.problem:
            return replace(evaluation, counters=counters, flags=(*evaluation.flags, counted.problem))
        counters |= combined_counters(counted.launches)
        reason = outside_reason(evaluation.timings[0].seconds, [each[TIME] for each in counted.launches])
        if reason:
            return replace(
                evaluation, outcome=Outcome.REJECTED, message=reason, counters=counters, guard=Guard.GPU_TIME
            )
        if all(set(launch) <= {TIME} for launch in counted.launches):
            return replace(evaluation, counters=counters)
        gpu = self.opened.gpu
        architecture = architecture_of(gpu.architecture, gpu.name)
        access_bytes = max(widest_access(made.ptx) for made in candidate.builds)
        kernels = [launch.kernel for launch in candidate.plans[0].launches]
        diagnosis = diagnose_launches(counted.launches, architecture, access_bytes, kernels)
        return replace(evaluation, counters=counters, diagnosis=diagnosis)

    def _guarded(self, evaluation: Evaluation, candidate: Candidate) -> Evaluation:
        ptx = [made.ptx for made in candidate.builds]
        l2_bytes = self.opened.gpu.l2_bytes
        peaks = roofline(self._task, ptx, evaluation.counters, self._ceilings, l2_bytes)
        reason = quarantine_reason(self._task, evaluation.timings, peaks)
        guard = Guard.ROOFLINE if reason else None
        return replace(
            evaluation, quarantine=reason, flags=(*evaluation.flags, *flags(evaluation)), guard=guard
        )

    @property
    def _ceilings(self) -> Ceilings:
        """What was measured or what is promised, whichever is higher: a time is refused that beats both."""
        return highest(self.opened.ceilings, documented_ceilings(self.opened.gpu))


def _with_checks(evaluation: Evaluation, checks: Sequence[Check]) -> Evaluation:
    found = replace(evaluation, checks=(*evaluation.checks, *checks))
    if checks[-1].passed:
        return found
    failed = checks[-1]
    outcome = Outcome.REJECTED if failed.guard is Guard.GPU_TIME else Outcome.WRONG_RESULT
    return replace(found, outcome=outcome, message=failed.message, guard=failed.guard)


def _compiled(candidate: Candidate) -> dict[str, float]:
    """What the compiler's report says in place of counters: the most of any launch at the first search shape."""
    launches = candidate.plans[0].launches
    resources = [candidate.build_of(each).resources_of(each.kernel) for each in launches]
    shared = [
        each.shared_bytes + launch.shared_bytes for each, launch in zip(resources, launches, strict=True)
    ]
    return {REGISTERS: float(max(each.registers for each in resources)), SHARED_BYTES: float(max(shared))}


def _refused(arena: Arena, sentence: str, guard: Guard) -> Check:
    case = arena.case
    message = f"At {case.label} (seed {case.seed}), {sentence}"
    return Check(
        shape_label(arena.shape), case.seed, passed=False, error=float("inf"), message=message, guard=guard
    )
