"""Evaluates candidates on a GPU, from outside the process that holds it.

Seeds, expected outputs and verdicts stay here. Nothing that a candidate does to the process that runs it makes a wrong
result look right.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import replace
from functools import partial

from mctskernel.core.device import DeviceSpec
from mctskernel.core.evaluation import Check, Evaluation, GpuState, Guard, Outcome, Source, Timing
from mctskernel.core.kernel import SOURCE_LANGUAGES
from mctskernel.core.launch_plan import LaunchPlanError
from mctskernel.core.task import shape_label
from mctskernel.core.task_file import read_text, start_files, task_of
from mctskernel.profiling.architecture import architecture_of
from mctskernel.profiling.candidate import Candidate, RefusedError, check_block
from mctskernel.profiling.ceilings import documented_ceilings, roofline
from mctskernel.profiling.counters import REGISTERS, SHARED_BYTES, TIME, combined_counters
from mctskernel.profiling.diagnosis import diagnose_launches, widest_access
from mctskernel.profiling.gpu.accounting import (
    clocks_apart,
    count_mismatches,
    find_violation,
    refused_check,
    remembered,
)
from mctskernel.profiling.gpu.arenas import VARIANTS, Arena
from mctskernel.profiling.gpu.lock import COUNTERS, COUNTERS_PATIENCE, GpuLock
from mctskernel.profiling.gpu.protocol import Counted, Loaded, Opened, Ran, Timed
from mctskernel.profiling.gpu.reference_device import open_reference_device
from mctskernel.profiling.gpu.state import are_alike
from mctskernel.profiling.gpu.timing import timing
from mctskernel.profiling.gpu.worker import GPU_SERVICE, GpuWorker
from mctskernel.profiling.guardrails import chance_flag, flags, outside_reason, quarantine_reason, worn_check
from mctskernel.profiling.processes.child_process import LostError
from mctskernel.profiling.processes.worker_process import Prepared
from mctskernel.profiling.ptx_text import used_variables
from mctskernel.profiling.stages import Stages

TIMING_SECONDS = 0.03  # Kernel time of a candidate at one search shape; the baseline's runs are not in it

RECHECKS = 8
"""How many runs are checked, picked at random, of a kernel whose results differ from run to run. One that is wrong in
half of them, the fewest that can move a median, passes once in 256 times."""

WEARING_RUNS = 300
"""How many runs a kernel with variables makes in a row before its result is checked once more."""

BASELINE_RUNS = 31
"""The baseline's time is the median of its latest runs at the present clock, this many: few of them fall on one
candidate, and a hiccup there would make that candidate look fast. They lie seconds apart, so what drifts still drifts
for both. A GPU's first candidate has all of them beside it: from then on its times compare with other GPUs'."""

PAUSES = (0.0, 0.1, 0.5)
"""Seconds before a kernel is timed again whose clocks are apart; if they still are after these, it is refused. One that
seems to keep something from run to run is timed as often in a new process, which has seen none of the inputs."""

FEWEST_BASELINE_RUNS = 3  # how many of them each candidate has beside it at least

MUCH_FASTER = 2.0
"""How many times as fast as the baseline a start is that takes its place: its runs beside each kernel cost less."""

HOPELESS = 1.5  # how many times as long as the best kernel a slow one takes that is timed on two runs only

COUNTED = 1.1
"""How many times as long as the best kernel one takes whose counters are read: no slower one is an answer or a parent
of many, and reading them takes as long as all the rest."""

BRIEF_SECONDS = 0.02
"""A kernel that takes longer runs once for its counters: as many as can be read of one run."""


class GpuEvaluator:
    """Evaluates candidates of one task on one GPU, which it holds alone meanwhile. For one thread, besides `interrupt`.

    `spec.gpu` is the GPU's UUID; where it is empty the first visible one is meant, and opened without its lock.
    `service` names what runs in the GPU process. Every method raises DeviceError when the GPU is broken or lost.
    """

    def __init__(self, spec: DeviceSpec, metrics: Sequence[str], service: str = GPU_SERVICE) -> None:
        self._spec, self._metrics, self._service = spec, tuple(metrics), service
        self._lock = GpuLock(spec.gpu) if spec.gpu else None
        self._counters_lock, self._own_counters = (
            GpuLock(COUNTERS),
            GpuLock(f"{COUNTERS}-{spec.gpu or 'first'}"),
        )
        self._claimed = ExitStack()
        self._has_claimed = False
        self._baseline: Candidate | None = None
        self._worker: GpuWorker | None = None
        self._baseline_runs: dict[int, deque[tuple[float, GpuState | None]]] = {}
        self._best: dict[int, float] = {}
        files = [file for each in SOURCE_LANGUAGES for file in start_files(spec.task_folder, each)]
        self._starts = frozenset(read_text(file) for file in files)
        self._baseline_scale: dict[int, float] = {}
        self._threads = ThreadPoolExecutor(VARIANTS, "verify")
        self._interrupted = False

    def open(self) -> Opened:
        """Open the GPU, draw the inputs and put them there; before anything else.

        What is drawn on the CPU, and what it takes to open the GPU, keeps no other process from it. Raises TaskError
        for a reference that fails, and DeviceError for a GPU that can't be used.
        """
        task = task_of(self._spec)
        with ThreadPoolExecutor(2, "draw") as threads:
            worker = GpuWorker(task, self._spec.seed, self._metrics, self._service, self._spec.gpu)
            self._worker = worker
            if self._interrupted:
                worker.interrupt()
            if self._spec.gpu:
                threads.submit(open_reference_device, task, self._spec.gpu)
            verified = threads.submit(worker.draw_verified)
            opened = worker.opened
            self._lock = self._lock or GpuLock(opened.gpu.uuid)
            cases = verified.result()
        worker.place(cases, self._lock)
        return opened

    @property
    def opened(self) -> Opened:
        """The open GPU."""
        return self._open_worker.opened

    @property
    def warning(self) -> str:
        """Why other processes may disturb this GPU's timings; empty where nothing is known."""
        return self._lock.warning if self._lock is not None else ""

    def use_baseline(self, candidate: Candidate) -> None:
        """Interleave every timing with this kernel from now on; without effect if the GPU refuses it."""
        self._baseline = candidate  # loaded with the next kernel

    def evaluate(self, prepared: Prepared) -> Evaluation:
        """Verify, time and count a kernel that was built; the first stage that fails decides the outcome.

        Waiting for the GPU's lock is not part of the kernel's cost.
        """
        candidate, stages = prepared.candidate, Stages()
        stages.add(prepared.stage_seconds)
        begun = Evaluation(Outcome.OK, Source.MEASURED, resources=candidate.resources, log=candidate.log)
        self._claim_counters()
        with self._held():
            if self._baseline is not None:
                with suppress(RefusedError, LostError):
                    self._open_worker.load_baseline(self._baseline)
                self._baseline = None
            try:
                evaluation = self._evaluated(begun, candidate, stages)
            except RefusedError as refusal:
                evaluation = refusal.evaluation(Source.MEASURED)
            except LostError as error:
                log = "\n".join(text for text in (begun.log, error.log) if text)
                evaluation = replace(
                    begun, outcome=error.outcome, message=error.message, log=log, guard=error.guard
                )
            self.share_counters()
        return replace(evaluation, stage_seconds=stages.seconds)

    def share_counters(self) -> None:
        """Release the GPU's counters if another process waits for them."""
        if self._own_counters.is_contended:
            self.release_counters()

    def release_counters(self) -> None:
        """Let other processes read counters on the GPU until the next kernel, which sets them up again."""
        self._open_worker.release_counters()
        self._claimed.close()
        self._has_claimed = False

    def pause(self) -> None:
        """Leave the GPU and its memory to other processes until the next kernel."""
        self.release_counters()
        self._open_worker.pause()

    def _claim_counters(self) -> None:
        """Wait until no other process has set up the GPU's counters, before the GPU's lock, which that may wait for."""
        if self._has_claimed or self.opened.counters:
            return
        self._has_claimed = self._claimed.enter_context(self._own_counters.held(COUNTERS_PATIENCE))

    def interrupt(self) -> None:
        """End the GPU process for good, and stop waiting for locks, from any thread."""
        self._interrupted = True
        for lock in (self._counters_lock, self._own_counters):
            lock.interrupt()
        if self._lock is not None:
            self._lock.interrupt()
        if self._worker is not None:
            self._worker.interrupt()

    def close(self) -> None:
        """End the GPU process and free the tensors."""
        self._threads.shutdown(cancel_futures=True)
        if self._worker is not None:
            self._worker.close()
        self._claimed.close()
        for lock in (self._counters_lock, self._own_counters):
            lock.close()
        if self._lock is not None:
            self._lock.close()

    @property
    def _open_worker(self) -> GpuWorker:
        if self._worker is None:
            raise RuntimeError("The evaluator isn't open: call `open` first.")
        return self._worker

    def _held(self) -> AbstractContextManager[bool]:
        assert self._lock is not None  # noqa: S101 - `open` saw to it
        return self._lock.held()

    def _evaluated(self, evaluation: Evaluation, candidate: Candidate, stages: Stages) -> Evaluation:
        worker = self._open_worker
        with stages.timed("verify"):
            self._check_limits(candidate, worker.load(candidate))
            evaluation = self._verified(evaluation, candidate, worker.arenas.verified)
            if evaluation.ok:
                evaluation = self._repeated(evaluation, candidate)
            if evaluation.ok and any(used_variables(made.ptx) for made in candidate.builds):
                evaluation = self._worn(evaluation, candidate)
        if evaluation.ok:
            evaluation = self._timed(evaluation, candidate, stages)
        if evaluation.ok:
            evaluation = replace(evaluation, counters=_compiler_report(candidate))
        if evaluation.ok and self._is_worth_counting(evaluation.timings):
            evaluation = self._counted(evaluation, candidate, stages)
        if evaluation.ok:
            evaluation = self._guarded(evaluation, candidate)
        if evaluation.ok and not evaluation.quarantine:
            for arena, found in zip(worker.arenas.timed, evaluation.timings, strict=True):
                self._best[arena.index] = min(found.seconds, self._best.get(arena.index, math.inf))
            if candidate.kernel.source in self._starts:
                self._prefer(candidate, evaluation.timings)
        return evaluation

    def _prefer(self, start: Candidate, timings: Sequence[Timing]) -> None:
        """Interleave with a start from now on if it takes much less time than the baseline.

        Its times are scaled to the starting kernel's, by what the two took beside each other, so ratios stay the same.
        """
        arenas = [arena.index for arena in self._open_worker.arenas.timed]
        scales = dict(
            zip(arenas, ((each.baseline_seconds or 0.0) / each.seconds for each in timings), strict=True)
        )
        if all(
            scale >= MUCH_FASTER * self._baseline_scale.get(index, 1.0) for index, scale in scales.items()
        ):
            self._open_worker.load_baseline(start)
            self._starts -= {start.kernel.source}
            self._baseline_scale = scales
            for index, found in zip(arenas, timings, strict=True):
                state = found.conditions.after if found.conditions is not None else None
                runs = ((seconds, state) for seconds in found.samples)
                self._baseline_runs[index] = deque(runs, maxlen=BASELINE_RUNS)

    def _check_limits(self, candidate: Candidate, loaded: Loaded) -> None:
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
        ran = self._open_worker.run(candidate, arenas)
        checks: list[Check] = []
        for index, arena in enumerate(arenas):
            checks.append(_check_run(arena, ran, index))
            if not checks[-1].passed:
                break
        return _with_checks(evaluation, checks)

    def _repeated(self, evaluation: Evaluation, candidate: Candidate) -> Evaluation:
        """Run the last and largest case again: a result that depends on chance is flagged, or refused."""
        arena = self._open_worker.arenas.verified[-1]
        before = arena.output_bytes()
        self._open_worker.run(candidate, (arena,))
        flag = chance_flag(before, arena.output_bytes(), arena.case.label)
        if not flag:
            return evaluation
        if self._open_worker.task.deterministic:
            return replace(evaluation, outcome=Outcome.WRONG_RESULT, message=flag, guard=Guard.REPETITION)
        return replace(evaluation, flags=(*evaluation.flags, flag))

    def _worn(self, evaluation: Evaluation, candidate: Candidate) -> Evaluation:
        """Run the largest case after many runs as a program makes them, without resetting variables in between."""
        verified = self._open_worker.arenas.verified
        ran = self._open_worker.wear(candidate, verified[-2:][0], WEARING_RUNS, verified[-1])
        return _with_checks(evaluation, [worn_check(_check_run(verified[-1], ran), WEARING_RUNS)])

    def _timed(self, evaluation: Evaluation, candidate: Candidate, stages: Stages) -> Evaluation:
        """Time at every search shape; the outputs of every timed run must be right."""
        timings: list[Timing] = []
        checks: list[Check] = []
        notes: list[str] = []
        for arena in self._open_worker.arenas.timed:
            with stages.timed("time"):
                runs, hopeless = self._fewest_baseline_runs(arena), self._hopeless_seconds(arena)
                timed = self._open_worker.time(candidate, arena, TIMING_SECONDS, runs, hopeless)
                for pause in PAUSES:
                    # Other processes may have used the GPU. What cheats does so again.
                    if remembered(timed.runs):
                        self._open_worker.renew(candidate)
                    elif clocks_apart(timed.batches):
                        time.sleep(pause)
                    else:
                        break
                    timed = self._open_worker.time(candidate, arena, TIMING_SECONDS, runs, hopeless)
            # Digests are taken among the timed runs, but they are verification.
            stages.add({"time": -timed.digest_seconds, "verify": timed.digest_seconds})
            label = shape_label(arena.shape)
            timings.append(
                timing(label, timed.samples, self._baseline_samples(arena, timed), timed.conditions)
            )
            if not timed.baseline:
                notes.append(
                    f"At {label} it ran {len(timed.runs)} times only: it takes {timed.samples[0] * 1e3:.1f} ms, and "
                    f"the best kernel so far {self._best[arena.index] * 1e3:.1f} ms."
                )
            if timed.disturbed:
                notes.append(f"At {label} its time is less certain than others: {timed.disturbed}.")
            with stages.timed("verify"):
                found, note = self._check_timed_runs(candidate, arena, timed)
            checks += found
            notes += [note] if note else []
            if not checks[-1].passed:
                break
        evaluation = replace(
            evaluation, timings=tuple(timings), flags=(*evaluation.flags, *notes), gpu=self.opened.gpu.uuid
        )
        return _with_checks(evaluation, checks)

    def _check_timed_runs(self, candidate: Candidate, arena: Arena, timed: Timed) -> tuple[list[Check], str]:
        """The checks of the timed runs at one shape, up to the first that fails, and a note."""
        if violation := find_violation(timed):
            return [refused_check(arena, violation.sentence, violation.guard)], ""
        checks = list(self._threads.map(arena.verdict, sorted(timed.fetched)))
        wrong = [check for check in checks if not check.passed]
        different = count_mismatches(timed)
        if wrong:
            return [replace(wrong[0], guard=Guard.TIMED_OUTPUTS)], ""
        if not different:
            return checks[:1], ""
        note = (
            f"At {arena.case.label} {different} of {len(timed.runs)} timed runs left other bytes than the checked run "
            f"on the same inputs"
        )
        if self._open_worker.task.deterministic:
            return [refused_check(arena, f"{note}: the result depends on chance.", Guard.REPETITION)], ""
        for _ in range(RECHECKS):
            again = self._open_worker.recheck(candidate, arena)
            if again.overrun or not again.run.inputs_kept:
                sentence = again.overrun or "an input was changed in place."
                return [refused_check(arena, sentence, Guard.GUARD_BYTES)], ""
            check = arena.verdict(again.run.variant)
            if not check.passed:
                message = f"{check.message} That was one of the timed runs, picked at random."
                return [replace(check, message=message, guard=Guard.TIMED_OUTPUTS)], ""
        return checks[:1], f"{note}; {RECHECKS} more runs, picked at random, were right."

    def _fewest_baseline_runs(self, arena: Arena) -> int:
        """As many as its median lacks, if the clock is still that of the last candidate."""
        if not self._open_worker.has_baseline:
            return FEWEST_BASELINE_RUNS
        return max(FEWEST_BASELINE_RUNS, BASELINE_RUNS - len(self._alike(arena)))

    def _hopeless_seconds(self, arena: Arena) -> float:
        """What a slow kernel takes at least that can't be among the best; infinite while that isn't known."""
        best = self._best.get(arena.index)
        return HOPELESS * best if best is not None and self._alike(arena) else math.inf

    def _alike(self, arena: Arena) -> tuple[float, ...]:
        """The latest runs of the baseline at the clock of the last ones."""
        recent = self._baseline_runs.get(arena.index) or deque()
        return tuple(seconds for seconds, then in recent if are_alike(then, recent[-1][1]))

    def _baseline_samples(self, arena: Arena, timed: Timed) -> tuple[float, ...]:
        if self._open_worker.has_baseline and not timed.disturbed:
            now = timed.conditions.before if timed.conditions is not None else None
            recent = self._baseline_runs.setdefault(arena.index, deque(maxlen=BASELINE_RUNS))
            recent.extend((seconds, now) for seconds in timed.baseline)
            found = self._alike(arena)
        else:
            found = timed.baseline
        return tuple(self._baseline_scale.get(arena.index, 1.0) * each for each in found)

    def _is_worth_counting(self, timings: Sequence[Timing]) -> bool:
        """Whether a kernel is among the fastest at any of the shapes."""
        arenas = self._open_worker.arenas.timed
        return any(
            found.seconds <= COUNTED * self._best.get(arena.index, math.inf)
            for arena, found in zip(arenas, timings, strict=True)
        )

    def _counted(self, evaluation: Evaluation, candidate: Candidate, stages: Stages) -> Evaluation:
        """With counters of one run at the first search shape and a diagnosis; without, where there are none."""
        if self.opened.counters:
            return evaluation
        # The GPU's own clock needs no setting up that others would wait for.
        alone = not set(self._metrics) <= {TIME}
        seconds = evaluation.timings[0].seconds
        brief = alone and seconds > BRIEF_SECONDS
        with (
            self._counters_lock.held(COUNTERS_PATIENCE) if alone else nullcontext(),
            stages.timed("counters"),
        ):
            count = partial(
                self._open_worker.count, candidate, self._open_worker.arenas.timed[0], brief=brief
            )
            counted = count()
            if _outside(seconds, counted):
                counted = count()  # launches may have been lost; what cheats does so again
        problem = counted.problem
        if not all(TIME in launch for launch in counted.launches):
            # Seen of a launch of 0.8 s, whose counters all read NaN.
            problem = problem or "It has no counters: the GPU gave no time of a launch."
        if problem:
            return replace(evaluation, flags=(*evaluation.flags, problem))
        if brief:
            note = f"Its counters are those of one run, fewer than usual: it takes {seconds * 1e3:.0f} ms."
            evaluation = replace(evaluation, flags=(*evaluation.flags, note))
        counters = {**evaluation.counters, **combined_counters(counted.launches)}
        if reason := _outside(seconds, counted):
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
        task, gpu = self._open_worker.task, self.opened.gpu
        ptx = [made.ptx for made in candidate.builds]
        peaks = roofline(task, ptx, evaluation.counters, documented_ceilings(gpu), gpu.l2_bytes)
        reason = quarantine_reason(task, evaluation.timings, peaks)
        guard = Guard.ROOFLINE if reason else None
        return replace(
            evaluation, quarantine=reason, flags=(*evaluation.flags, *flags(evaluation)), guard=guard
        )


def _outside(seconds: float, counted: Counted) -> str:
    """A sentence about a plan that spends its time outside its own kernels, as far as these were counted."""
    if counted.problem or not all(TIME in launch for launch in counted.launches):
        return ""
    return outside_reason(seconds, [each[TIME] for each in counted.launches])


def _check_run(arena: Arena, ran: Ran, index: int = 0) -> Check:
    overrun = ran.overruns.get(index)
    return refused_check(arena, overrun, Guard.GUARD_BYTES) if overrun else arena.verdict()


def _with_checks(evaluation: Evaluation, checks: Sequence[Check]) -> Evaluation:
    found = replace(evaluation, checks=(*evaluation.checks, *checks))
    if checks[-1].passed:
        return found
    failed = checks[-1]
    outcome = Outcome.REJECTED if failed.guard is Guard.GPU_TIME else Outcome.WRONG_RESULT
    return replace(found, outcome=outcome, message=failed.message, guard=failed.guard)


def _compiler_report(candidate: Candidate) -> dict[str, float]:
    """The compiler's report in place of counters: the most of any launch at the first search shape."""
    launches = candidate.plans[0].launches
    resources = [candidate.build_of(each).resources_of(each.kernel) for each in launches]
    shared = [
        each.shared_bytes + launch.shared_bytes for each, launch in zip(resources, launches, strict=True)
    ]
    return {REGISTERS: float(max(each.registers for each in resources)), SHARED_BYTES: float(max(shared))}
