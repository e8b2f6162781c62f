"""A kernel's time without a GPU: count sampled blocks, price every launch of the plan, say what binds it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mctskernel.core.evaluation import Diagnosis
from mctskernel.core.expression import Number
from mctskernel.core.launch_plan import ResolvedLaunch, ResolvedPlan
from mctskernel.core.task import Array
from mctskernel.profiling.architecture import Architecture, occupancy
from mctskernel.profiling.bottleneck import combined_diagnosis, diagnose
from mctskernel.profiling.build import Build
from mctskernel.profiling.candidate import Candidate
from mctskernel.profiling.counters import combined_counters, modelled_counters
from mctskernel.profiling.emulator import Counts, Geometry, GlobalMemory, Module, count
from mctskernel.profiling.machine_code.frequencies import instruction_lines
from mctskernel.profiling.machine_code.functions import Function
from mctskernel.profiling.machine_code.nvdisasm import Disassembly
from mctskernel.profiling.model.price import Price, Term, price
from mctskernel.profiling.model.traffic import Range, Sample
from mctskernel.profiling.model.work import KernelWork, kernel_work

LARGE_SAMPLE = 8_000_000
"""Lane instructions of one block beyond which no second block is counted: what is so long is seldom uneven."""


@dataclass(frozen=True)
class LaunchPrice:
    """One launch with everything that its price was made from."""

    work: KernelWork
    price: Price
    counters: Mapping[str, float]
    diagnosis: Diagnosis


@dataclass(frozen=True)
class Modelled:
    """Modelled seconds of one run of the plan, their terms in seconds, and counters by Nsight Compute's names.

    The time is the launches' and the gaps between them; `stage_seconds` is what modelling cost.
    """

    seconds: float
    terms: Mapping[str, float]
    counters: Mapping[str, float]
    diagnosis: Diagnosis
    launches: tuple[LaunchPrice, ...]
    stage_seconds: Mapping[str, float]


@dataclass(frozen=True)
class Unmodelled:
    """Why a kernel can't be priced; the message is a sentence."""

    message: str
    launch_error: bool = False


def model_kernel(
    candidate: Candidate,
    module: Callable[[ResolvedLaunch], Module],
    disassembly: Callable[[ResolvedLaunch], Disassembly],
    plan: ResolvedPlan,
    gpu: Architecture,
    *,
    buffers: Mapping[str, int],
    contents: Callable[[str], Array],
) -> Modelled | Unmodelled:
    """Price a plan at one shape.

    `module` and `disassembly` give the PTX and the machine code of a launch; the latter is asked for after
    counting, since it may still be under way. `buffers` gives the bytes of each of the task's tensors at that
    shape; `contents(name)` gives an array, and is only called for buffers whose contents decide addresses or
    branches.
    """
    counted: list[_Counting] = []
    began = time.perf_counter()
    for launch in plan.launches:
        resources = candidate.build_of(launch).resources_of(launch.kernel)
        fits = occupancy(
            gpu, launch.threads, resources.registers, resources.shared_bytes + launch.shared_bytes
        )
        if not fits.blocks:
            return Unmodelled(
                _too_large(launch, resources.registers, fits.limited_by, gpu), launch_error=True
            )
        counting = _Counting(
            module(launch), candidate.entry_of(launch), launch, plan, buffers=buffers, contents=contents
        )
        problem = counting.sample()
        if problem:
            return Unmodelled(f"The kernel '{launch.kernel}' can't be counted: {problem}.")
        counted.append(counting)
    counting_seconds, began = time.perf_counter() - began, time.perf_counter()
    functions = [disassembly(each.launch).functions[each.entry] for each in counted]
    waiting_seconds, began = time.perf_counter() - began, time.perf_counter()
    prices = [
        _priced(counting, candidate.build_of(counting.launch), function, gpu)
        for counting, function in zip(counted, functions, strict=True)
    ]
    stages = {
        "count": counting_seconds,
        "disassemble": waiting_seconds,
        "price": time.perf_counter() - began,
    }
    return _combined(prices, gpu, stages)


def _too_large(launch: ResolvedLaunch, registers: int, limited_by: str, gpu: Architecture) -> str:
    return (
        f"The kernel '{launch.kernel}' can't be launched: one block of {launch.threads} threads with {registers} "
        f"registers each and {launch.shared_bytes} bytes of dynamic shared memory asks for more {limited_by} than "
        f"an SM of the {gpu.name} has."
    )


class _Counting:
    """Counts blocks of one launch at its true shape, over buffers that have no bytes unless they are needed."""

    def __init__(
        self,
        module: Module,
        entry: str,
        launch: ResolvedLaunch,
        plan: ResolvedPlan,
        *,
        buffers: Mapping[str, int],
        contents: Callable[[str], Array],
    ) -> None:
        self.launch = launch
        self.entry = entry
        self.samples: list[Sample] = []
        self._module = module
        self._geometry = Geometry(launch.grid, launch.block, launch.shared_bytes)
        self._sizes = {**buffers, **{scratch.name: scratch.nbytes for scratch in plan.scratch}}
        self._inputs = frozenset(buffers)
        self._contents = contents
        self._backed: set[str] = set()
        self._neighbours: dict[int, Counts | None] = {}
        self._memory, self._arguments = self._place()

    @property
    def ranges(self) -> list[Range]:
        """Where the buffers lie."""
        return [
            Range(buffer.name, buffer.base >> 5, (buffer.base + buffer.size - 1) >> 5)
            for buffer in self._memory
        ]

    def sample(self) -> str:
        """Count the middle block, and unless it is long the first and last; says what went wrong, if anything."""
        total = self.launch.blocks
        middle = self.count(_middle(self.launch.grid))
        if isinstance(middle, str):
            return middle
        edge = total - math.prod(extent - 1 for extent in self.launch.grid if extent > 1)
        lanes = sum(block.lane_executions * sum(block.instructions.values()) for block in middle.basic_blocks)
        if total <= 2 or lanes > LARGE_SAMPLE:
            self.samples = [Sample(_middle(self.launch.grid), middle, float(total))]
            return ""
        first, last = self.count(0), self.count(total - 1)
        if isinstance(first, str) or isinstance(last, str):
            return first if isinstance(first, str) else str(last)
        side = min(float(edge), total / 3)
        self.samples = [
            Sample(0, first, side),
            Sample(_middle(self.launch.grid), middle, total - 2 * side),
            Sample(total - 1, last, side),
        ]
        return ""

    def neighbour(self, distance: int) -> Counts | None:
        """The block so far after the middle one, where there is one."""
        block = _middle(self.launch.grid) + distance
        if block not in self._neighbours:
            found = self.count(block) if block < self.launch.blocks else ""
            self._neighbours[block] = None if isinstance(found, str) else found
        return self._neighbours[block]

    def count(self, block: int) -> Counts | str:
        """One block's counts, or what is in the way of them."""
        while True:
            counts = count(
                self._module, self.entry, self._geometry, self._arguments, self._memory, blocks=(block,)
            )
            if counts.findings:
                return counts.findings[0].message
            if not counts.needs:
                return counts
            if self._backed.issuperset(counts.needs):
                return f"its addresses depend on the contents of '{counts.needs[0]}'"
            self._backed.update(counts.needs)
            self._memory, self._arguments = self._place()

    def _place(self) -> tuple[GlobalMemory, list[Number]]:
        memory = GlobalMemory()
        addresses: dict[str, int] = {}
        for name in dict.fromkeys(a for a in self.launch.arguments if isinstance(a, str)):
            if name in self._backed and name in self._inputs:
                addresses[name] = memory.add(name, self._contents(name))
            else:
                addresses[name] = memory.add(name, self._sizes[name], virtual=name not in self._backed)
        return memory, [addresses[a] if isinstance(a, str) else a for a in self.launch.arguments]


def _middle(grid: tuple[int, int, int]) -> int:
    x, y, z = (extent // 2 for extent in grid)
    return x + grid[0] * (y + grid[1] * z)


def _priced(counting: _Counting, build: Build, function: Function, gpu: Architecture) -> LaunchPrice:
    launch = counting.launch
    work = kernel_work(
        launch,
        build.resources_of(launch.kernel),
        function,
        gpu,
        ptx_lines=instruction_lines(build.ptx, build.entries[launch.kernel]),
        samples=counting.samples,
        buffers=counting.ranges,
        neighbour=counting.neighbour,
    )
    found = price(work, gpu)
    return LaunchPrice(work, found, modelled_counters(work, found, gpu), diagnose(work, found, gpu))


def _combined(prices: Sequence[LaunchPrice], gpu: Architecture, stages: Mapping[str, float]) -> Modelled:
    gaps = (len(prices) - 1) * gpu.overheads.launch_gap
    terms: dict[str, float] = {}
    for launch in prices:
        for term, seconds in launch.price.terms.items():
            terms[term.value] = terms.get(term.value, 0.0) + seconds
    terms[Term.LAUNCH.value] += gaps
    return Modelled(
        sum(launch.price.seconds for launch in prices) + gaps,
        terms,
        combined_counters([launch.counters for launch in prices]),
        combined_diagnosis([(launch.diagnosis, launch.price.seconds) for launch in prices]),
        tuple(prices),
        stages,
    )
