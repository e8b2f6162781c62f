"""The requests that the GPU process answers: it keeps tensors, runs launches, times and counts them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from mctskernel.core.device import DeviceError
from mctskernel.profiling.gpu.buffers import Arena, BoundPlan, LoadedKernel, ScratchMemory, bound, place
from mctskernel.profiling.gpu.cuda_driver import CudaError, DeviceBuffer, free_bytes, open_gpu
from mctskernel.profiling.gpu.cupti import (
    CountersBusyError,
    CountersUnavailableError,
    RangeProfiler,
    when_free,
)
from mctskernel.profiling.gpu.device_kernels import Digests, Scrub, Segment
from mctskernel.profiling.gpu.drawing import Drawer
from mctskernel.profiling.gpu.protocol import (
    Count,
    Counted,
    Failed,
    GpuReply,
    GpuRequest,
    Load,
    Loaded,
    Opened,
    OpenGpu,
    Place,
    Plan,
    Ran,
    Read,
    Recheck,
    Rechecked,
    ReleaseCounters,
    Run,
    Time,
    Timed,
    TimedRun,
    Wear,
)
from mctskernel.profiling.gpu.state import GpuMonitor, Monitor, StateUnavailableError, Unmonitored
from mctskernel.profiling.gpu.timing import FEWEST_VARIANTS, Cleaner, Schedule, TimedRuns, interleaved
from mctskernel.profiling.processes.channel import Broken, Ready
from mctskernel.profiling.processes.shared_window import SharedWindow

FOREIGN_WRITE = "The kernel writes to memory of the evaluator that no argument of its points to."


class GpuService:
    """Answers for one GPU. Everything that a candidate can write is reset before each of its runs."""

    def __init__(self, window: SharedWindow) -> None:
        self._window = window
        self._arenas: dict[int, Arena] = {}
        self._input_digests: dict[int, list[int]] = {}
        self._kernels: dict[int, LoadedKernel] = {}
        self._scratch = ScratchMemory()

    def open(self, request: OpenGpu) -> Opened | Broken:
        """Make the context and set up the counters."""
        try:
            gpu = open_gpu(request.gpu)
            # Twice the cache, so that filling it leaves nothing of the tensors there.
            self._cleaner = Cleaner(DeviceBuffer(2 * gpu.l2_bytes), Scrub(gpu))
            self._digests = Digests(gpu.architecture)
            self._draw = Drawer(gpu.architecture)
            counters = self._open_counters(request.metrics)
            state = self._open_monitor(gpu.uuid)
        except CudaError as error:
            return Broken(f"The GPU can't be used: {error}. Perhaps another process has filled its memory.")
        except DeviceError as error:
            return Broken(str(error))
        return Opened(gpu, counters, state, free_bytes())

    def answer(self, request: GpuRequest) -> GpuReply:
        """The reply to anything but OpenGpu."""
        answers: dict[type[GpuRequest], Callable[[Any], GpuReply]] = {
            Place: self._place,
            Load: self._load,
            Run: self._run,
            Wear: self._wear,
            Time: self._time,
            Recheck: self._recheck,
            Count: self._count,
            ReleaseCounters: self._release_counters,
        }
        if isinstance(request, OpenGpu):
            return Broken("The GPU is open already.")
        try:
            return answers[type(request)](request)
        except CudaError as error:
            return Failed(f"The GPU refused the kernel: {error}.", error.sticky)

    def _open_counters(self, metrics: Sequence[str]) -> str:
        self._profiler: RangeProfiler | None = None
        self._metrics = metrics
        if not metrics:
            return "No counters are wanted."
        try:
            self._profiler = RangeProfiler(metrics)
        except CountersBusyError:
            pass  # Another search has them, and releases them where a kernel's are to be read.
        except CountersUnavailableError as error:
            return str(error)
        return ""

    def _open_monitor(self, uuid: str) -> str:
        self._monitor: Monitor = Unmonitored()
        try:
            self._monitor = GpuMonitor(uuid)
        except StateUnavailableError as error:
            return str(error)
        return ""

    def _place(self, request: Place) -> Ready:
        arena = self._arenas[request.arena] = place(request.tensors, self._window, self._draw)
        self._input_digests[request.arena] = [
            self._digests.now(arena.fresh_inputs(variant)) for variant in range(arena.variants)
        ]
        return Ready()

    def _load(self, request: Load) -> Loaded:
        if request.slot in self._kernels:
            self._kernels.pop(request.slot).unload()
        kernel = self._kernels[request.slot] = LoadedKernel(request.codes)
        return Loaded(kernel.max_threads(request.codes))

    def _run(self, request: Run) -> Ran:
        overruns: dict[int, str] = {}
        foreign = self._foreign(step.plan.arena for step in request.steps)
        before = self._digests.now(foreign)
        for index, step in enumerate(request.steps):
            with self._bound(step.plan) as plan:
                guards = self._digests.now(plan.guards)
                self._cleaner.clean(plan, 0)
                plan.run()
                if self._digests.now(plan.guards) != guards:
                    overruns[index] = plan.overrun() or FOREIGN_WRITE
                for read in step.reads:
                    plan.arena.fetch(read, self._window)
        return Ran(overruns, self._foreign_write(foreign, before))

    def _wear(self, request: Wear) -> Ran:
        step = request.step
        foreign = self._foreign((request.before.arena, step.plan.arena))
        digest = self._digests.now(foreign)
        with self._bound(request.before) as before, self._bound(step.plan) as plan:
            guards = self._digests.now([*before.guards, *plan.guards])
            self._cleaner.clean(before, 0)
            for _ in range(request.times):
                before.run()
            self._cleaner.clean_but_variables(plan)
            plan.run()
            written = self._digests.now([*before.guards, *plan.guards]) != guards
            overrun = (before.overrun() or plan.overrun() or FOREIGN_WRITE) if written else ""
            for read in step.reads:
                plan.arena.fetch(read, self._window)
        return Ran({0: overrun} if overrun else {}, self._foreign_write(foreign, digest))

    def _time(self, request: Time) -> Timed:
        with self._bound(request.baseline) as baseline, self._bound(request.plan) as candidate:
            foreign = self._foreign([request.plan.arena])
            before, guards = self._digests.now(foreign), self._digests.now(candidate.guards)
            inputs, seldom = self._inputs(request.plan), request.checked_only
            runs = TimedRuns(candidate, baseline, self._cleaner, self._digests, inputs, checked_only=seldom)
            unseen: list[float] = []
            checked: dict[int, int] = {}

            def collect() -> None:
                """Fetch the outputs of the last run, to be checked."""
                last = self._fetch_last(runs, request.reads)
                checked[last.variant] = last.outputs

            def timed(times: int) -> list[float]:
                seconds = runs.candidate(times)
                if runs.is_slow:
                    # No run is made only to be checked.
                    collect()
                return seconds

            hopeless = request.hopeless_seconds
            schedule = Schedule(
                request.seconds, fewest_baseline=request.baseline_runs, hopeless_seconds=hopeless
            )
            samples = interleaved(timed, runs.baseline, schedule, self._monitor)
            if not runs.is_slow:
                collect()
            for variant in runs.seen:
                if variant not in checked:
                    runs.on_seen(variant)
                    collect()
            while runs.held_back and (samples.baseline or len(checked) < FEWEST_VARIANTS):
                unseen += runs.unseen(again=bool(samples.baseline))
                collect()
            if samples.baseline or len(checked) < FEWEST_VARIANTS:
                for variant in range(len(inputs) - seldom, len(inputs)):
                    runs.on_seen(variant)
                    collect()
            samples = samples.extended(unseen, self._monitor.read())
            return Timed(
                samples.samples,
                samples.baseline,
                tuple(runs.runs),
                checked,
                tuple(runs.batches),
                runs.digest_seconds,
                self._overrun(candidate, guards),
                self._foreign_write(foreign, before),
                samples.conditions,
                samples.disturbed,
            )

    def _recheck(self, request: Recheck) -> Rechecked:
        with self._bound(request.baseline) as baseline, self._bound(request.plan) as candidate:
            foreign = self._foreign([request.plan.arena])
            before, guards = self._digests.now(foreign), self._digests.now(candidate.guards)
            runs = TimedRuns(candidate, baseline, self._cleaner, self._digests, self._inputs(request.plan))
            runs.again()
            last = self._fetch_last(runs, request.reads)
            return Rechecked(last, self._overrun(candidate, guards), self._foreign_write(foreign, before))

    def _fetch_last(self, runs: TimedRuns, reads: Sequence[Sequence[Read]]) -> TimedRun:
        """Copy the outputs of the last run to the place of its variant."""
        last = runs.runs[-1]
        for read in reads[last.variant]:
            runs.arena.fetch(read, self._window)
        return last

    def _inputs(self, plan: Plan) -> Sequence[int]:
        return self._input_digests[plan.arena]

    def _overrun(self, plan: BoundPlan, guards: int) -> str:
        """A sentence about guards whose digest was `guards` before."""
        return plan.overrun() or FOREIGN_WRITE if self._digests.now(plan.guards) != guards else ""

    def _foreign(self, used: Iterable[int]) -> list[Segment]:
        """Memory that a kernel on these arenas must not write."""
        own = set(used)
        arenas = [each.kept if index in own else each.everything for index, each in self._arenas.items()]
        return [segment for each in arenas for segment in each] + [
            segment for each in self._kernels.values() for segment in each.kept
        ]

    def _foreign_write(self, foreign: Sequence[Segment], before: int) -> str:
        return FOREIGN_WRITE if self._digests.now(foreign) != before else ""

    def _count(self, request: Count) -> Counted:
        if not self._metrics:
            return Counted((), "There are no counters here.")
        with self._bound(request.plan) as plan:
            foreign = [*self._foreign([request.plan.arena]), *self._scratch.unused]
            before = self._digests.now(foreign)

            def run_cold() -> None:
                # Every pass runs it again. Fills and copies are no launches, so they aren't counted.
                plan.restore()
                self._cleaner.cool()
                plan.run()

            launches: tuple[dict[str, float], ...] = ()
            problem = ""
            try:
                profiler = self._profiler = self._profiler or when_free(lambda: RangeProfiler(self._metrics))
                launches = tuple(
                    when_free(lambda: profiler.measure(run_cold, len(plan.launches), brief=request.brief))
                )
                if len(launches) != len(plan.launches):
                    problem = f"The GPU gave counters of {len(launches)} of {len(plan.launches)} launches."
            except CountersUnavailableError as error:
                problem = str(error)
            return Counted(launches, problem, self._foreign_write(foreign, before))

    def _release_counters(self, _: ReleaseCounters) -> Ready:
        if self._profiler is not None:
            self._profiler.release()
        return Ready()

    def _bound(self, plan: Plan) -> AbstractContextManager[BoundPlan]:
        return bound(plan, self._arenas[plan.arena], self._kernels[plan.slot], self._scratch)
