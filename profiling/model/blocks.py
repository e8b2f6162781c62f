"""Blocks of a launch counted at its true shape: by interpreting the machine code, else by emulating the PTX.

Machine code is what runs, so its counts are exact; PTX stands in for what the interpreter can't follow, with a note.
Branches on floating-point data, which the interpreter doesn't compute, go as often either way as the emulator saw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TypeVar

import numpy as np

from mctskernel.core.expression import Number
from mctskernel.core.launch_plan import ResolvedLaunch, ResolvedPlan
from mctskernel.core.task import Array
from mctskernel.profiling.architecture import WARP_LANES
from mctskernel.profiling.build import Build
from mctskernel.profiling.emulator import Counts, Geometry, GlobalMemory, Limits, Module, count
from mctskernel.profiling.emulator.launch import pack
from mctskernel.profiling.machine_code.frequencies import block_frequencies, instruction_lines
from mctskernel.profiling.machine_code.functions import Function
from mctskernel.profiling.machine_code.interpretation import (
    Interpretable,
    Interpretation,
    Uninterpreted,
    interpret,
    interpretable,
)
from mctskernel.profiling.model.scoreboard import Chain, LatencyOf, chain, mean_chain, path_chain
from mctskernel.profiling.model.traffic import Range, Sample

UNEVEN_SAMPLE = 12
"""Blocks that are counted at the most where the contents of buffers decide what a block does."""

UNEVEN_LANES = 2_000_000
"""Lane instructions that those blocks may have together, beyond the first three."""

IDLE_MIDDLE = 4
"""How many times as much as the middle block one at an end must execute for blocks all over the grid to be counted:
such a middle stands for itself, as where the larger half of a grid has nothing to do. So does one that asks for no
memory where an end does."""

LARGE_SAMPLE = 8_000_000
"""Lane instructions of one block beyond which no second block is counted: what is so long is seldom uneven."""

LIMITS = Limits(lane_instructions=4_000_000_000, block_executions=400_000, seconds=15.0)
"""When a block counts as endless: its steps, which are the same everywhere; the seconds are for a slow machine."""

Counted = TypeVar("Counted")


@dataclass(frozen=True)
class CountedLaunch:
    """A launch as its sampled blocks show it.

    `executions[i]` is how often warps of the whole grid issue machine instruction i; `chain_of` follows a warp
    through them. `neighbour(distance)` counts the block so far after the middle one, where there is one.
    `shared_wavefronts` are all that pass shared memory where the machine code was followed, 0 elsewhere; `note`
    says then, in a sentence, why it was not, and is empty where it was.
    """

    samples: tuple[Sample, ...]
    executions: np.ndarray
    chain_of: Callable[[LatencyOf], Chain]
    neighbour: Callable[[int], Counts | None]
    shared_wavefronts: float = 0.0
    note: str = ""


class BlockCounter:
    """Counts single blocks of one launch, over buffers that have no bytes unless they decide where it goes.

    `endless` is set when a block didn't end within the limits.
    """

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
        self.endless = False
        self._module = module
        self._geometry = Geometry(launch.grid, launch.block, launch.shared_bytes)
        self._sizes = {**buffers, **{scratch.name: scratch.nbytes for scratch in plan.scratch}}
        self._inputs = frozenset(buffers)
        self._contents = contents
        self._backed: set[str] = set()
        self._memory, self._arguments = self._place()

    @property
    def data_dependent(self) -> bool:
        """Whether the contents of buffers have decided addresses or branches so far."""
        return bool(self._backed)

    @property
    def decisive(self) -> frozenset[str]:
        """Buffers whose contents have decided addresses or branches so far."""
        return frozenset(self._backed)

    @property
    def ranges(self) -> list[Range]:
        """Where the buffers lie."""
        return [
            Range(buffer.name, buffer.base >> 5, (buffer.base + buffer.size - 1) >> 5)
            for buffer in self._memory
        ]

    def emulated(self, block: int) -> Counts | str:
        """One block of the PTX, or what is in the way of counting it."""
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
                self.endless = counts.findings[0].kind == "limit"
                return counts.findings[0].message
            if not counts.needs:
                return counts
            if not self._back(counts.needs):
                return f"its addresses depend on the contents of '{counts.needs[0]}'"

    def interpreted(
        self, code: Interpretable, block: int, line_counts: Mapping[int, float]
    ) -> Interpretation | str:
        """One block of the machine code, or why it can't be followed."""
        while True:
            packed = pack(self._module.entries[self.entry].parameters, self._arguments)
            found = interpret(
                code,
                packed,
                self._memory,
                self._geometry,
                blocks=(block,),
                line_counts=line_counts,
                limits=LIMITS,
            )
            if isinstance(found, Uninterpreted):
                self.endless = found.endless
                return found.message
            if not found.counts.needs:
                return found
            if not self._back(found.counts.needs):
                return f"Its addresses depend on the contents of '{found.counts.needs[0]}'."

    def _back(self, needed: Sequence[str]) -> bool:
        """Give buffers their contents; False where they have them already."""
        if self._backed.issuperset(needed):
            return False
        self._backed.update(needed)
        self._memory, self._arguments = self._place()
        return True

    def _place(self) -> tuple[GlobalMemory, list[Number]]:
        memory = GlobalMemory()
        addresses: dict[str, int] = {}
        for name in dict.fromkeys(a for a in self.launch.arguments if isinstance(a, str)):
            if name in self._backed and name in self._inputs:
                addresses[name] = memory.add(name, self._contents(name))
            else:
                addresses[name] = memory.add(name, self._sizes[name], virtual=name not in self._backed)
        return memory, [addresses[a] if isinstance(a, str) else a for a in self.launch.arguments]


def count_launch(counter: BlockCounter, build: Build, function: Function) -> CountedLaunch | str:
    """Count blocks of a launch by its machine code, or by its PTX; a sentence says why neither can be done."""
    emulation = cache(partial(_emulate, counter, build))
    code = interpretable(function, build.cubin)
    if isinstance(code, Uninterpreted):
        return _estimated(counter, function, emulation(), code.message)
    found = _interpreted(counter, code, emulation)
    if isinstance(found, CountedLaunch) or counter.endless:
        return found
    return _estimated(counter, function, emulation(), found)


def sampled_blocks(counter: BlockCounter) -> list[tuple[int, Counts, float]] | str:
    """Blocks that a price is made from, counted by their PTX, each with how many it stands for."""
    return _sampled(counter, counter.emulated, lambda counts: counts.lane_instructions, lambda counts: counts)


@dataclass(frozen=True)
class _Emulation:
    """Emulated blocks, each with the blocks that it stands for, and how often a warp executes each line of PTX."""

    blocks: list[tuple[int, Counts, float]]
    line_counts: Mapping[int, float]


def _emulate(counter: BlockCounter, build: Build) -> _Emulation | str:
    blocks = sampled_blocks(counter)
    if isinstance(blocks, str):
        return blocks
    lines = instruction_lines(build.ptx, build.entries[counter.launch.kernel])
    return _Emulation(blocks, _line_counts(blocks, lines, counter.launch))


def _interpreted(
    counter: BlockCounter, code: Interpretable, emulation: Callable[[], _Emulation | str]
) -> CountedLaunch | str:
    line_counts: Mapping[int, float] = {}
    if code.decisions:
        seen = emulation()
        if isinstance(seen, _Emulation):
            line_counts = seen.line_counts
        elif counter.endless:
            return seen

    @cache
    def interpreted(block: int) -> Interpretation | str:
        return counter.interpreted(code, block, line_counts)

    found = _sampled(
        counter,
        interpreted,
        lambda each: WARP_LANES * int(each.executions.sum()),
        lambda each: each.counts,
    )
    if isinstance(found, str):
        return found
    executions = sum(weight * each.executions for _, each, weight in found)
    # Blocks alike are followed once; where the data makes them differ, what they take at the mean.
    followed = [each for _, each, _ in found] if counter.data_dependent else [found[len(found) // 2][1]]

    def chain_of(latency_of: LatencyOf) -> Chain:
        longest = []
        for each in followed:
            chains = [path_chain(code.function, path.blocks, latency_of) for path in each.paths]
            longest.append(max(chains, key=lambda chain: chain.cycles))
        return mean_chain(longest)

    def neighbour(distance: int) -> Counts | None:
        block = middle_block(counter.launch.grid) + distance
        other = interpreted(block) if block < counter.launch.blocks else ""
        return None if isinstance(other, str) else other.counts

    samples = tuple(Sample(block, each.counts, weight) for block, each, weight in found)
    wavefronts = sum(weight * each.shared_wavefronts for _, each, weight in found)
    return CountedLaunch(samples, np.asarray(executions), chain_of, neighbour, wavefronts)


def _estimated(
    counter: BlockCounter, function: Function, emulation: _Emulation | str, note: str
) -> CountedLaunch | str:
    """The machine code's executions as the least-squares flow through it that agrees with the PTX's."""
    if isinstance(emulation, str):
        return emulation
    frequencies = block_frequencies(function, emulation.line_counts)
    executions = np.zeros(len(function.instructions))
    for block, frequency in frequencies.items():
        span = function.blocks[block]
        executions[span.first : span.last] = frequency * _warps(counter.launch)

    @cache
    def neighbour(distance: int) -> Counts | None:
        block = middle_block(counter.launch.grid) + distance
        other = counter.emulated(block) if block < counter.launch.blocks else ""
        return None if isinstance(other, str) else other

    samples = tuple(Sample(block, counts, weight) for block, counts, weight in emulation.blocks)
    return CountedLaunch(
        samples,
        executions,
        lambda latency_of: chain(function, frequencies, latency_of),
        neighbour,
        note=f"Counted by its PTX: {note[:1].lower()}{note[1:]}",
    )


def _sampled(
    counter: BlockCounter,
    counted: Callable[[int], Counted | str],
    lanes: Callable[[Counted], int],
    counts: Callable[[Counted], Counts],
) -> list[tuple[int, Counted, float]] | str:
    """The middle block, and unless it is long the first and last, each with the blocks that it stands for.

    More of them where the data decides what a block does, or where the middle one has next to nothing to do.
    """
    launch = counter.launch
    total = launch.blocks
    at = middle_block(launch.grid)
    middle = counted(at)
    if isinstance(middle, str):
        return middle
    if total <= 2 or lanes(middle) > LARGE_SAMPLE:
        return [(at, middle, float(total))]
    if counter.data_dependent and total > UNEVEN_SAMPLE:
        number = max(3, min(UNEVEN_SAMPLE, UNEVEN_LANES // max(1, lanes(middle))))
        return _evenly(total, number, counted)
    first, last = counted(0), counted(total - 1)
    if isinstance(first, str):
        return first
    if isinstance(last, str):
        return last
    asks_for_none = not _requests(counts(middle)) and any(_requests(counts(end)) for end in (first, last))
    is_idle = asks_for_none or max(lanes(first), lanes(last)) > IDLE_MIDDLE * lanes(middle)
    if total > UNEVEN_SAMPLE and is_idle:
        return _evenly(total, UNEVEN_SAMPLE, counted)
    edge = total - math.prod(extent - 1 for extent in launch.grid if extent > 1)
    side = min(float(edge), total / 3)
    return [(0, first, side), (at, middle, total - 2 * side), (total - 1, last, side)]


def _requests(counts: Counts) -> int:
    """What a block asks of global memory."""
    return sum(access.requests for access in counts.accesses if access.space == "global")


def _evenly(
    total: int, number: int, counted: Callable[[int], Counted | str]
) -> list[tuple[int, Counted, float]] | str:
    """So many blocks all over the grid, each for as many others."""
    found: list[tuple[int, Counted, float]] = []
    for each in range(number):
        block = (2 * each + 1) * total // (2 * number)
        one = counted(block)
        if isinstance(one, str):
            return one
        found.append((block, one, total / number))
    return found


def _line_counts(
    emulated: Sequence[tuple[int, Counts, float]], ptx_lines: Sequence[int], launch: ResolvedLaunch
) -> dict[int, float]:
    """Executions per warp of each PTX line; empty when the emulator's blocks don't cover the text."""
    totals: dict[int, float] = {}
    for _, counts, weight in emulated:
        blocks = counts.basic_blocks
        if sum(sum(block.instructions.values()) for block in blocks) != len(ptx_lines):
            return {}
        position = 0
        for block in blocks:
            for _ in range(sum(block.instructions.values())):
                line = ptx_lines[position]
                totals[line] = totals.get(line, 0.0) + weight * block.warp_executions / _warps(launch)
                position += 1
    return totals


def _warps(launch: ResolvedLaunch) -> int:
    """Warps of the whole grid."""
    return launch.blocks * -(-launch.threads // WARP_LANES)


def middle_block(grid: tuple[int, int, int]) -> int:
    """The block that stands for most of a grid."""
    x, y, z = (extent // 2 for extent in grid)
    return x + grid[0] * (y + grid[1] * z)
