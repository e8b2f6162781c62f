"""What stands for a GPU in its process: kernels whose names say what they do, on tensors in host memory."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import replace

import numpy as np

from mctskernel.core.device import DeviceSpec
from mctskernel.core.executor import ExecutorOptions
from mctskernel.executors.gpu import GpuExecutor
from mctskernel.profiling.gpu.cuda_driver import Gpu
from mctskernel.profiling.gpu.drawing import drawn
from mctskernel.profiling.gpu.protocol import (
    Batch,
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
    Step,
    TensorPlace,
    Time,
    Timed,
    TimedRun,
    Wear,
)
from mctskernel.profiling.processes.channel import Broken, Ready
from mctskernel.profiling.processes.shared_window import SharedWindow

GPU = Gpu("Fake GPU", "00", "13.0", "sm_90", 50 << 20, 232448, 3.35e12)
SECONDS = {
    "twice": 100e-6,
    "faster": 50e-6,
    "decoy": 50e-6,
    "foreign_writees_last": 50e-6,
    "has_no_time": 50e-6,
    "impossible": 1e-12,
}
VARIANTS = (0, 0, 1, 0, 1, 1, 0, 1, 0, 1, 2, 2, 2, 2)
"""The inputs of timed runs: the last runs are on what no other was on."""

JUDGED = (8, 9, 13)  # the run that is fetched, by variant
TIMED = 1000  # no case that isn't timed has so many elements


class FakeGpu:
    """Runs `twice`, `faster`, `wrong`, `crash`, `die`, `hang`, `refuse`, `overrun`, `greedy`, ... by name.

    It accounts for timed runs as the service of a real GPU does, and believes nothing that a kernel's name says.
    """

    def __init__(self, window: SharedWindow) -> None:
        self.window = window
        self.arenas: dict[int, dict[str, np.ndarray]] = {}
        self.places: dict[int, tuple[TensorPlace, ...]] = {}
        self.worn = 0
        self.runs = 0
        self.timed = 0
        self.seen: dict[object, int] = {}

    def open(self, request: OpenGpu) -> Opened | Broken:
        return Opened(
            replace(GPU, uuid=request.gpu or GPU.uuid), "" if request.metrics else "No counters here."
        )

    def answer(self, request: GpuRequest) -> GpuReply:
        match request:
            case Place(arena, tensors):
                self.places[arena] = tensors
                return Ready()
            case Load(_, codes):
                names = [entry for code in codes for entry in code.entries]
                return Loaded(dict.fromkeys(names, 32 if "narrow" in names else 1024))
            case Run(steps):
                return self.run(steps)
            case Wear(before, times, step):
                self.worn = sum(self.launch(before) is None for _ in range(times))
                reply = self.run((step,))
                self.worn = 0
                return reply
            case Time(plan, baseline, _, _, reads, _):
                return self.time(plan, baseline, reads)
            case Recheck(plan, _, reads):
                failure, found = self.timed_run(plan, self.runs % 3, in_order=self.runs)
                self.fetch(plan, reads[found.variant])
                return failure or Rechecked(found)
            case ReleaseCounters():
                return Ready()
            case Count(plan, _):
                return self.count(plan)
        raise AssertionError(request)

    def count(self, plan: Plan) -> Counted:
        names = {launch.entry for launch in plan.launches}
        if "foreign_writees_last" in names:
            return Counted((), foreign_write="It writes elsewhere.")
        if "has_no_time" in names:
            return Counted(tuple({"sm__cycles_elapsed.max": 1.0} for _ in plan.launches))
        return Counted(tuple({"gpu__time_duration.sum": self.counted(plan)} for _ in plan.launches))

    def time(self, plan: Plan, baseline: Plan, reads: tuple[tuple[Read, ...], ...]) -> GpuReply:
        runs: list[TimedRun] = []
        for index, variant in enumerate(VARIANTS):
            failure, found = self.timed_run(plan, variant, in_order=index)
            if failure is not None:
                return failure
            runs.append(found)
            if index in JUDGED:
                self.fetch(plan, reads[variant])
        self.timed += 1
        # Every third time something gets in the baseline's way.
        slow = 3.0 if self.timed % 3 == 0 else 1.0
        names = {launch.entry for launch in plan.launches}
        if "forges" in names:
            runs.append(TimedRun(99, 1e-6, 0, inputs_kept=True))
        return Timed(
            tuple(run.seconds for run in runs[2:]),
            tuple(slow * each for each in self.samples(baseline)),
            tuple(runs),
            {runs[index].variant: runs[index].outputs for index in JUDGED},
            (Batch(0.1, 0.001 if "outlasts" in names else 0.0999),),
            digest_seconds=1e-4,
            overrun="it writes 4 bytes behind the buffer 'out'." if "overruns_timed" in names else "",
            foreign_write="It writes elsewhere." if "foreign_writees" in names else "",
        )

    def timed_run(self, plan: Plan, variant: int, in_order: int) -> tuple[Failed | None, TimedRun]:
        first = self.seen.setdefault((plan.launches, variant), in_order) == in_order
        failure = self.launch(plan, variant, in_order)
        seconds = self.seconds(plan) * (1 + 1e-4 * in_order)
        names = {launch.entry for launch in plan.launches}
        if not first and ("remembers" in names or ("disturbed" in names and self.timed)):
            seconds /= 10
        places, tensors = self.places[plan.arena], self.arenas[plan.arena]
        left = b"".join(tensors[each.name].tobytes() for each in places if each.output)
        kept = all(
            tensors[each.name].tobytes() == self.fresh(each, variant).tobytes()
            for each in places
            if not each.output
        )
        digest = int.from_bytes(hashlib.sha256(left).digest()[:8], "little")
        return failure, TimedRun(variant, seconds, digest, kept)

    def run(self, steps: tuple[Step, ...]) -> GpuReply:
        overruns = {}
        for index, step in enumerate(steps):
            failure = self.launch(step.plan)
            if failure is not None:
                return failure
            if any(launch.entry == "overrun" for launch in step.plan.launches):
                overruns[index] = "it writes 4 bytes behind the buffer 'out' of 4 bytes."
            self.fetch(step.plan, step.reads)
        return Ran(overruns)

    def launch(self, plan: Plan, variant: int = 0, in_order: int = 0) -> Failed | None:  # noqa: C901, PLR0912 - a table
        tensors = {each.name: self.fresh(each, variant) for each in self.places[plan.arena]}
        self.arenas[plan.arena] = tensors
        tensors = {**tensors, **{each.name: tensors[each.tensor] for each in plan.tensor_maps}}
        self.runs += 1
        for launch in plan.launches:
            x, out = (tensors[name] for name in launch.arguments if name in tensors)
            match launch.entry:
                case "weary":  # keeps a result for good
                    out[:] = 2 * x if not self.worn else 0
                case "wrong":
                    out[:] = 3 * x
                case "skips":  # right where it is looked at
                    out[:] = 2 * x if len(x) < TIMED or in_order in JUDGED else 0
                case "copies_first":  # the outputs of the first inputs that it saw
                    out[:] = 2 * self.fresh(self.places[plan.arena][0], 0)
                case "swallows":  # a NaN where it is timed
                    out[:] = 2 * (np.where(np.isnan(x), 0, x) if len(x) > TIMED else x)
                case "spoils_timed":
                    out[:] = 2 * x
                    x[0] += len(x) > TIMED and in_order not in JUDGED
                case "lazy":
                    out[1:] = 2 * x[1:]
                case "spoils":
                    out[:] = 2 * x
                    x[0] += 1
                case "fickle":
                    out[:] = 2 * x * (1 + np.float32(1e-7) * (self.runs % 2))
                case "crash":
                    return Failed("The GPU refused the kernel: an illegal memory access.", lost=True)
                case "refuse":
                    return Failed("The GPU refused the kernel: too many resources.", lost=False)
                case "die":
                    os.abort()
                case "hang":
                    time.sleep(1000)
                case _:
                    out[:] = 2 * x
        return None

    def fresh(self, place: TensorPlace, variant: int = 0) -> np.ndarray:
        if place.drawings:
            return drawn(place.drawings[variant], np.arange(place.nbytes // 4))
        if place.offsets:
            return self.window.bytes_at(place.offsets[variant], place.nbytes).view(np.float32).copy()
        return np.full(place.nbytes // 4, place.poison, np.uint32).view(np.float32)

    def fetch(self, plan: Plan, reads: tuple[Read, ...]) -> None:
        for read in reads:
            data = self.arenas[plan.arena][read.tensor].view(np.uint8)
            rows = [data[read.start + i * read.pitch :][: read.width] for i in range(read.rows)]
            self.window.bytes_at(read.offset, read.rows * read.width)[:] = np.concatenate(rows)

    @staticmethod
    def counted(plan: Plan) -> float:
        return 1e-9 if any(each.entry == "decoy" for each in plan.launches) else FakeGpu.seconds(plan)

    @staticmethod
    def samples(plan: Plan) -> tuple[float, ...]:
        return tuple(FakeGpu.seconds(plan) * (1 + 1e-4 * i) for i in range(7))

    @staticmethod
    def seconds(plan: Plan) -> float:
        """By name; larger blocks than 64 threads take less, so that a search finds something."""
        return sum(
            SECONDS.get(launch.entry, 100e-6) * min(1.0, (64 / launch.launch.block[0]) ** 0.5)
            for launch in plan.launches
        )


def open_fake_gpu(spec: DeviceSpec, workers: int, _: ExecutorOptions) -> GpuExecutor:
    """A device of this GPU, to be named as `tests.executors.fake_gpu:open_fake_gpu`."""
    service = f"{__name__}:FakeGpu"
    return GpuExecutor(spec, workers=workers, service=service, check=None)
