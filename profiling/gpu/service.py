"""What the GPU process does for its parent: keeps tensors, runs launches, times and counts them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from mctskernel.core.device import DeviceError
from mctskernel.profiling.ceilings import default_cache_folder, measured_ceilings
from mctskernel.profiling.gpu.code import BoundPlan, LoadedKernel, bound
from mctskernel.profiling.gpu.cuda_driver import (
    CudaError,
    DeviceBuffer,
    Stopwatch,
    open_gpu,
    synchronize,
)
from mctskernel.profiling.gpu.cupti import CountersUnavailableError, RangeProfiler
from mctskernel.profiling.gpu.memory import Arena, place
from mctskernel.profiling.gpu.protocol import (
    Broken,
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
    Place,
    Plan,
    Ran,
    Run,
    Time,
    Timed,
)
from mctskernel.profiling.gpu.timing import Schedule, interleaved
from mctskernel.profiling.processes.shared_window import SharedWindow


class GpuService:
    """Answers for the first visible GPU. Everything that a candidate touches is put back before each of its runs."""

    def __init__(self, window: SharedWindow) -> None:
        self._window = window
        self._arenas: dict[int, Arena] = {}
        self._kernels: dict[int, LoadedKernel] = {}

    def open(self, request: OpenGpu) -> Opened | Broken:
        """Make the context, measure its ceilings if nobody has, and get ready to count."""
        try:
            gpu = open_gpu()
            # Twice the cache, so that filling it leaves nothing of the tensors there.
            self._flush = DeviceBuffer(2 * gpu.l2_bytes)
            ceilings = measured_ceilings(gpu, default_cache_folder())
            counters = self._open_counters(request.metrics)
        except CudaError as error:
            return Broken(f"The GPU can't be used: {error}. Perhaps another process has filled it.")
        except DeviceError as error:
            return Broken(str(error))
        return Opened(gpu, ceilings, counters)

    def answer(self, request: GpuRequest) -> GpuReply:
        """The reply to anything but OpenGpu."""
        try:
            match request:
                case Place():
                    self._arenas[request.arena] = place(request.tensors, self._window)
                    return Done()
                case Load():
                    return self._load(request)
                case Run():
                    return self._run(request)
                case Time():
                    return self._time(request)
                case Count():
                    return self._count(request)
                case OpenGpu():
                    return Broken("The GPU is open already.")
        except CudaError as error:
            return Failed(f"The GPU refused the kernel: {error}.", error.sticky)

    def _open_counters(self, metrics: Sequence[str]) -> str:
        self._profiler: RangeProfiler | None = None
        try:
            self._profiler = RangeProfiler(metrics)
        except CountersUnavailableError as error:
            return str(error)
        return ""

    def _load(self, request: Load) -> Loaded:
        if request.slot in self._kernels:
            self._kernels.pop(request.slot).unload()
        kernel = self._kernels[request.slot] = LoadedKernel(request.codes)
        return Loaded(kernel.max_threads(request.codes))

    def _run(self, request: Run) -> Ran:
        overruns: dict[int, str] = {}
        for index, step in enumerate(request.steps):
            with self._bound(step.plan) as plan:
                plan.restore()
                plan.run()
                synchronize()
                if overrun := plan.overrun():
                    overruns[index] = overrun
                for read in step.reads:
                    plan.arena.fetch(read, self._window)
        return Ran(overruns)

    def _time(self, request: Time) -> Timed:
        with self._bound(request.baseline) as baseline, self._bound(request.plan) as candidate:
            candidate.restore()
            samples = interleaved(self._timer(candidate), self._timer(baseline), Schedule(request.seconds))
            for read in request.reads:
                candidate.arena.fetch(read, self._window)
        return Timed(*samples)

    def _timer(self, plan: BoundPlan) -> Callable[[int], list[float]]:
        """Runs a plan some times, each on a cold cache with nothing left of the run before, and times each run."""

        def run(times: int) -> list[float]:
            watches = [Stopwatch() for _ in range(times)]
            for watch in watches:
                plan.restore_own()
                self._flush.fill(0)
                # Nobody waits here: the GPU is still filling when the launches arrive, so that it never idles in
                # between and what is timed is the kernel and not the launching.
                watch.start()
                plan.run()
                watch.stop()
            synchronize()
            return [watch.seconds for watch in watches]

        return run

    def _count(self, request: Count) -> Counted:
        if self._profiler is None:
            return Counted((), "There are no counters here.")
        with self._bound(request.plan) as plan:

            def run_cold() -> None:
                # Every pass runs it again. Fills and copies are no launches, so they aren't counted.
                plan.restore()
                self._flush.fill(0)
                plan.run()

            try:
                return Counted(tuple(self._profiler.measure(run_cold)))
            except CountersUnavailableError as error:
                return Counted((), str(error))

    def _bound(self, plan: Plan) -> AbstractContextManager[BoundPlan]:
        return bound(plan, self._arenas[plan.arena], self._kernels[plan.slot])
