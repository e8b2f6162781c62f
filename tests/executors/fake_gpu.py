"""What stands for a GPU in its process: kernels whose names say what they do, on tensors in host memory."""

from __future__ import annotations

import os
import time

import numpy as np

from mctskernel.profiling.ceilings import Ceilings
from mctskernel.profiling.gpu.cuda_driver import Gpu
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
    Read,
    Run,
    Step,
    TensorPlace,
    Time,
    Timed,
)
from mctskernel.profiling.processes.shared_window import SharedWindow

GPU = Gpu("Fake GPU", "00", "13.0", "sm_90", 50 << 20, 232448, 3.35e12)
SECONDS = {"twice": 100e-6, "faster": 50e-6, "impossible": 1e-12}


class FakeGpu:
    """Runs `twice`, `faster`, `wrong`, `crash`, `die`, `hang`, `refuse`, `overrun`, `greedy`, ... by name."""

    def __init__(self, window: SharedWindow) -> None:
        self.window = window
        self.arenas: dict[int, dict[str, np.ndarray]] = {}
        self.places: dict[int, tuple[TensorPlace, ...]] = {}
        self.runs = 0
        self.timed = 0

    def open(self, request: OpenGpu) -> Opened | Broken:
        return Opened(GPU, Ceilings(3e12, 60e12, 600e12), "" if request.metrics else "No counters here.")

    def answer(self, request: GpuRequest) -> GpuReply:
        match request:
            case Place(arena, tensors):
                self.places[arena] = tensors
                return Done()
            case Load(_, codes):
                names = [entry for code in codes for entry in code.entries]
                return Loaded(dict.fromkeys(names, 32 if "narrow" in names else 1024))
            case Run(steps):
                return self.run(steps)
            case Time(plan, baseline, _, reads):
                failure = self.launch(plan)
                self.fetch(plan, reads)
                self.timed += 1
                # Every third time something gets in the baseline's way.
                slow = 3.0 if self.timed % 3 == 0 else 1.0
                return failure or Timed(
                    self.samples(plan), tuple(slow * each for each in self.samples(baseline))
                )
            case Count(plan):
                return Counted(tuple({"gpu__time_duration.sum": self.counted(plan)} for _ in plan.launches))
        raise AssertionError(request)

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

    def launch(self, plan: Plan) -> Failed | None:  # noqa: C901 - a table of behaviours
        tensors = {each.name: self.fresh(each) for each in self.places[plan.arena]}
        self.arenas[plan.arena] = tensors
        self.runs += 1
        for launch in plan.launches:
            x, out = (tensors[name] for name in launch.arguments if isinstance(name, str))
            match launch.entry:
                case "twice" | "faster" | "overrun" | "impossible" | "decoy":
                    out[:] = 2 * x
                case "wrong":
                    out[:] = 3 * x
                case "lazy":
                    out[1:] = 2 * x[1:]
                case "spoils":
                    out[:] = 2 * x
                    x[0] += 1
                case "fickle":
                    out[:] = 2 * x * (1 + np.float32(1e-7) * (self.runs % 2))
                case "tired":  # right when verified, wrong when timed
                    out[:] = 2 * x if len(x) < 1000 else x
                case "crash":
                    return Failed("The GPU refused the kernel: an illegal memory access.", lost=True)
                case "refuse":
                    return Failed("The GPU refused the kernel: too many resources.", lost=False)
                case "die":
                    os.abort()
                case "hang":
                    time.sleep(1000)
        return None

    def fresh(self, place: TensorPlace) -> np.ndarray:
        if place.offset is not None:
            return self.window.bytes_at(place.offset, place.nbytes).view(np.float32).copy()
        return np.full(place.nbytes // 4, place.poison, np.uint32).view(np.float32)

    def fetch(self, plan: Plan, reads: tuple[Read, ...]) -> None:
        for read in reads:
            data = self.arenas[plan.arena][read.tensor].view(np.uint8)
            rows = [data[read.start + i * read.pitch :][: read.width] for i in range(read.rows)]
            self.window.bytes_at(read.offset, read.rows * read.width)[:] = np.concatenate(rows)

    @staticmethod
    def counted(plan: Plan) -> float:
        return sum(1e-9 if each.entry == "decoy" else SECONDS.get(each.entry, 1e-4) for each in plan.launches)

    @staticmethod
    def samples(plan: Plan) -> tuple[float, ...]:
        seconds = sum(SECONDS.get(launch.entry, 100e-6) for launch in plan.launches)
        return tuple(seconds * (1 + 1e-4 * i) for i in range(7))
