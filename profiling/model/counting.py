"""Count what sampled blocks of a launch do at its true shape, and how often its machine code runs.

The PTX emulator counts instructions and memory accesses, and `block_frequencies` carries its counts over to the machine
code that ptxas made of the PTX, with its registers, schedule and unrolled loops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from mctskernel.core.launch_plan import ResolvedLaunch, ResolvedPlan
from mctskernel.core.task import Array
from mctskernel.profiling.architecture import WARP_LANES
from mctskernel.profiling.build import Build
from mctskernel.profiling.emulator import Counts, Geometry, GlobalMemory, Limits, Module, count
from mctskernel.profiling.emulator.launch import Argument
from mctskernel.profiling.machine_code.frequencies import block_frequencies, instruction_lines
from mctskernel.profiling.machine_code.functions import Function
from mctskernel.profiling.model.scoreboard import Chain, LatencyOf, chain
from mctskernel.profiling.model.traffic import Range, Sample
from mctskernel.profiling.ptx_text import TENSOR_MAP_BYTES

LIMITS = Limits(lane_instructions=4_000_000_000, block_executions=400_000, seconds=15.0)
"""A block that exceeds these counts as endless; the seconds only matter on a slow machine."""

UNEVEN_SAMPLE = 12  # most blocks to count where the contents of buffers decide what a block does
UNEVEN_LANES = 2_000_000  # lane instructions that those blocks may have together, beyond the first three

IDLE_MIDDLE = 4
"""How many times as much as the middle block a block at an end must execute for the middle not to be representative."""

LARGE_SAMPLE = 8_000_000
"""Lane instructions of one block beyond which no second block is counted: such long blocks are seldom uneven."""


@dataclass(frozen=True)
class CountedLaunch:
    """The counts of one launch.

    `executions[i]` is how often warps of the whole grid issue machine instruction i; `chain_of` gives the time of one
    warp. `neighbour(distance)` counts the block that far after the middle one, None where there is no such block.
    """

    samples: tuple[Sample, ...]
    executions: np.ndarray
    chain_of: Callable[[LatencyOf], Chain]
    neighbour: Callable[[int], Counts | None]


class BlockCounter:
    """Counts single blocks of one launch. Buffers have no contents unless these decide addresses or branches."""

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
        self._module = module
        self._geometry = Geometry(launch.grid, launch.block, launch.shared_bytes)
        self._sizes = {**buffers, **{scratch.name: scratch.nbytes for scratch in plan.scratch}}
        self._maps = {each.name: bytes(TENSOR_MAP_BYTES) for each in plan.tensor_maps}
        self._inputs = frozenset(buffers)
        self._contents = contents
        self._backed: set[str] = set()
        self._memory, self._arguments = self._place()

    @property
    def data_dependent(self) -> bool:
        """Whether the contents of buffers have decided addresses or branches so far."""
        return bool(self._backed)

    @property
    def ranges(self) -> list[Range]:
        return [
            Range(buffer.name, buffer.base >> 5, (buffer.base + buffer.size - 1) >> 5)
            for buffer in self._memory
        ]

    def count(self, block: int) -> Counts | str:
        """The counts of one block, or why it can't be counted."""
        while True:
            counts = count(
                self._module,
                self.entry,
                self._geometry,
                self._arguments,
                self._memory,
                blocks=(block,),
                limits=LIMITS,
            )
            if counts.findings:
                return counts.findings[0].message
            if counts.needs and not self._back(counts.needs):
                return f"its addresses depend on the contents of '{counts.needs[0]}'"
            if not counts.needs:
                return counts

    def _back(self, needed: Sequence[str]) -> bool:
        """Give buffers their contents; False where they have them already."""
        if self._backed.issuperset(needed):
            return False
        self._backed.update(needed)
        self._memory, self._arguments = self._place()
        return True

    def _place(self) -> tuple[GlobalMemory, list[Argument]]:
        memory = GlobalMemory()
        addresses: dict[str, Argument] = dict(self._maps)
        for name in dict.fromkeys(a for a in self.launch.arguments if isinstance(a, str)):
            if name in self._maps:
                continue
            if name in self._backed and name in self._inputs:
                addresses[name] = memory.add(name, self._contents(name))
            else:
                addresses[name] = memory.add(name, self._sizes[name], virtual=name not in self._backed)
        return memory, [addresses[a] if isinstance(a, str) else a for a in self.launch.arguments]


def count_launch(counter: BlockCounter, build: Build, function: Function) -> CountedLaunch | str:
    """Count sampled blocks of a launch; a sentence says why that can't be done."""
    blocks = sample_blocks(counter)
    if isinstance(blocks, str):
        return blocks
    launch = counter.launch
    lines = instruction_lines(build.ptx, build.entries[launch.kernel])
    frequencies = block_frequencies(function, _line_counts(blocks, lines, launch))
    executions = np.zeros(len(function.instructions))
    for block, frequency in frequencies.items():
        span = function.blocks[block]
        executions[span.first : span.last] = frequency * _warps(launch)

    @cache
    def neighbour(distance: int) -> Counts | None:
        block = blocks[len(blocks) // 2][0] + distance
        other = counter.count(block) if block < launch.blocks else ""
        return None if isinstance(other, str) else other

    samples = tuple(Sample(counts, weight) for _, counts, weight in blocks)
    return CountedLaunch(
        samples, executions, lambda latency_of: chain(function, frequencies, latency_of), neighbour
    )


def sample_blocks(counter: BlockCounter) -> list[tuple[int, Counts, float]] | str:
    """The middle block, and unless it is long the first and last, each with the number of blocks it stands for.

    More of them where data decides what a block does, or where the middle one has next to nothing to do.
    """
    launch = counter.launch
    total = launch.blocks
    x, y, z = (extent // 2 for extent in launch.grid)
    at = x + launch.grid[0] * (y + launch.grid[1] * z)
    middle = counter.count(at)
    if isinstance(middle, str):
        return middle
    if total <= 2 or middle.lane_instructions > LARGE_SAMPLE:
        return [(at, middle, float(total))]
    if counter.data_dependent and total > UNEVEN_SAMPLE:
        number = max(3, min(UNEVEN_SAMPLE, UNEVEN_LANES // max(1, middle.lane_instructions)))
        return _evenly(counter, number)
    first, last = counter.count(0), counter.count(total - 1)
    if isinstance(first, str):
        return first
    if isinstance(last, str):
        return last
    no_requests = not _requests(middle) and bool(_requests(first) or _requests(last))
    longest = max(first.lane_instructions, last.lane_instructions)
    if total > UNEVEN_SAMPLE and (no_requests or longest > IDLE_MIDDLE * middle.lane_instructions):
        return _evenly(counter, UNEVEN_SAMPLE)
    edge = total - math.prod(extent - 1 for extent in launch.grid if extent > 1)
    side = min(float(edge), total / 3)
    return [(0, first, side), (at, middle, total - 2 * side), (total - 1, last, side)]


def _requests(counts: Counts) -> int:
    return sum(access.requests for access in counts.accesses if access.space == "global")


def _evenly(counter: BlockCounter, number: int) -> list[tuple[int, Counts, float]] | str:
    """So many blocks spread evenly over the grid."""
    total = counter.launch.blocks
    found: list[tuple[int, Counts, float]] = []
    for each in range(number):
        block = (2 * each + 1) * total // (2 * number)
        counts = counter.count(block)
        if isinstance(counts, str):
            return counts
        found.append((block, counts, total / number))
    return found


def _line_counts(
    blocks: Sequence[tuple[int, Counts, float]], ptx_lines: Sequence[int], launch: ResolvedLaunch
) -> dict[int, float]:
    """Executions per warp of each PTX line; empty when the emulator's instructions differ from the text's."""
    totals: dict[int, float] = {}
    for _, counts, weight in blocks:
        sizes = [block.instructions for block in counts.basic_blocks]
        if sum(sizes) != len(ptx_lines):
            return {}
        lines = iter(ptx_lines)
        for block, size in zip(counts.basic_blocks, sizes, strict=True):
            for _ in range(size):
                line = next(lines)
                totals[line] = totals.get(line, 0.0) + weight * block.warp_executions / _warps(launch)
    return totals


def _warps(launch: ResolvedLaunch) -> int:
    return launch.blocks * -(-launch.threads // WARP_LANES)
