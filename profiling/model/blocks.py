"""Blocks of a launch counted at its true shape: by interpreting the machine code, else by emulating the PTX.

Machine code is what runs, so its counts are exact; PTX stands in for what the interpreter can't follow, with a note.
Branches on floating-point data, which the interpreter doesn't compute, go as often either way as the emulator saw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from mctskernel.core.expression import Number
from mctskernel.core.launch_plan import ResolvedLaunch, ResolvedPlan
from mctskernel.core.task import Array
from mctskernel.profiling.architecture import WARP_LANES
from mctskernel.profiling.build import Build
from mctskernel.profiling.emulator import Counts, Geometry, GlobalMemory, Limits, Module, count
from mctskernel.profiling.emulator.launch import pack
from mctskernel.profiling.emulator.turns import Place
from mctskernel.profiling.machine_code.frequencies import block_frequencies, instruction_lines
from mctskernel.profiling.machine_code.functions import Function
from mctskernel.profiling.machine_code.interpretation import (
    Interpretable,
    Interpretation,
    Uninterpreted,
    interpret,
    interpretable,
)
from mctskernel.profiling.model.choice_of_blocks import DRAWN_SAMPLE, one_of_each_part, sampled
from mctskernel.profiling.model.scoreboard import Chain, LatencyOf, chain, mean_chain, path_chain
from mctskernel.profiling.model.traffic import Range, Sample

LIMITS = Limits(lane_instructions=4_000_000_000, block_executions=400_000, seconds=15.0)
"""When a block counts as endless: its steps, which are the same everywhere; the seconds are for a slow machine."""


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

    @property
    def sampling_error(self) -> float:
        """One standard error of what the mean block costs, as a fraction, from how much blocks differ from the next.

        So a cost that grows along the grid, each part of which has its sample, is no error.
        """
        costs = np.array([sample.cost for sample in self.samples])
        if len(costs) < 2 or not costs.any():
            return 0.0
        return math.sqrt(np.square(np.diff(costs)).mean() / 2.0 / len(costs)) / float(costs.mean())


class BlockCounter:
    """Counts single blocks of one launch, over buffers that have no bytes unless they decide where it goes.

    `endless` is set when a block didn't end within the limits. With `rng` a price is made from blocks that it draws,
    one from each part of the grid, in place of those that everybody knows.
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
        rng: np.random.Generator | None = None,
    ) -> None:
        self.launch = launch
        self.entry = entry
        self.endless = False
        self.drawn = None if rng is None else one_of_each_part(launch.blocks, DRAWN_SAMPLE, rng)
        self._module = module
        self._geometry = Geometry(launch.grid, launch.block, launch.shared_bytes)
        self._sizes = {**buffers, **{scratch.name: scratch.nbytes for scratch in plan.scratch}}
        self._inputs = frozenset(buffers)
        self._contents = contents
        self._backed: set[str] = set()
        self._counters: frozenset[Place] | None = None
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
    def counters(self) -> frozenset[Place]:
        """Where blocks draw their work from, as far as they have been counted: all from the same places."""
        return self._counters or frozenset()

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
            counts = self._count(block, self._counters)
            if counts.findings:
                self.endless = counts.findings[0].kind == "limit"
                return counts.findings[0].message
            if not counts.needs and not self._finds_counters(counts, block):
                return counts
            if not counts.needs:
                continue
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
                counters=self._counters,
            )
            if isinstance(found, Uninterpreted):
                self.endless = found.endless
                return found.message
            if not found.counts.needs and not self._finds_counters(found.counts, block):
                return found
            if not found.counts.needs:
                continue
            if not self._back(found.counts.needs):
                return f"Its addresses depend on the contents of '{found.counts.needs[0]}'."

    def _finds_counters(self, counts: Counts, block: int) -> bool:
        """Whether counting has to begin again: with counters that a block drew work from, or without them.

        Blocks that don't all draw from the same places share less than all of the work, and nobody knows how much.
        """
        known = self._counters
        if known == frozenset() or not counts.counters or counts.counters == known:
            return False
        elsewhere = (block + self.launch.blocks // 2 + 1) % self.launch.blocks
        shared = known is None and self._count(elsewhere).counters <= counts.counters
        self._counters = counts.counters if shared else frozenset()
        return True

    def _count(self, block: int, counters: Collection[Place] | None = None) -> Counts:
        return count(
            self._module,
            self.entry,
            self._geometry,
            self._arguments,
            self._memory,
            blocks=(block,),
            limits=LIMITS,
            counters=counters,
        )

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
    return sampled(counter, counter.emulated, lambda counts: counts.lane_instructions, lambda counts: counts)


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
    seen: _Emulation | str = ""
    if code.decisions:
        seen = emulation()
        if isinstance(seen, _Emulation):
            line_counts = seen.line_counts
        elif counter.endless:
            return seen

    @cache
    def interpreted(block: int) -> Interpretation | str:
        return counter.interpreted(code, block, line_counts)

    found = sampled(
        counter,
        interpreted,
        lambda each: WARP_LANES * int(each.executions.sum()),
        lambda each: each.counts,
    )
    if isinstance(found, str):
        return found
    executions = sum(weight * each.executions for _, each, weight in found)
    if isinstance(seen, _Emulation) and _falls_short(found, float(np.sum(executions)), seen):
        return "The machine code's branches on data don't go as often as those of the PTX."
    # Blocks alike are followed once; where the data makes them differ, what they take at the mean.
    differ = counter.data_dependent or counter.drawn is not None
    followed = [each for _, each, _ in found] if differ else [found[len(found) // 2][1]]

    def chain_of(latency_of: LatencyOf) -> Chain:
        longest = []
        for each in followed:
            chains = [path_chain(code.function, path.blocks, latency_of) for path in each.paths]
            longest.append(max(chains, key=lambda chain: chain.cycles))
        return mean_chain(longest)

    def neighbour(distance: int) -> Counts | None:
        block = found[len(found) // 2][0] + distance
        other = interpreted(block) if block < counter.launch.blocks else ""
        return None if isinstance(other, str) else other.counts

    samples = tuple(
        Sample(block, each.counts, weight, float(each.executions.sum())) for block, each, weight in found
    )
    wavefronts = sum(weight * each.shared_wavefronts for _, each, weight in found)
    return CountedLaunch(samples, np.asarray(executions), chain_of, neighbour, wavefronts)


LEAST_ISSUED = 0.4
"""Warp instructions of machine code for each of PTX, at the least: ptxas folds some, but never most of a loop."""

LEAST_MOVED = 0.7
"""The same of the bytes that they move: ptxas seldom finds an access that the compiler before it left to be found."""


def _falls_short(found: Sequence[tuple[int, Interpretation, float]], issued: float, seen: _Emulation) -> bool:
    """Whether blocks that were interpreted, with branches at a guess, did much less than they do by their PTX."""
    emulated = sum(weight * sum(counts.warp_instructions.values()) for _, counts, weight in seen.blocks)
    moved = sum(weight * _bytes(each.counts) for _, each, weight in found)
    asked = sum(weight * _bytes(counts) for _, counts, weight in seen.blocks)
    return issued < LEAST_ISSUED * emulated or moved < LEAST_MOVED * asked


def _bytes(counts: Counts) -> int:
    """What a block's threads move to and from global and shared memory."""
    return sum(
        access.lanes * access.bytes_per_lane
        for access in counts.accesses
        if access.space in {"global", "shared"}
    )


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
        block = emulation.blocks[len(emulation.blocks) // 2][0] + distance
        other = counter.emulated(block) if block < counter.launch.blocks else ""
        return None if isinstance(other, str) else other

    samples = tuple(
        Sample(block, counts, weight, float(sum(counts.warp_instructions.values())))
        for block, counts, weight in emulation.blocks
    )
    return CountedLaunch(
        samples,
        executions,
        lambda latency_of: chain(function, frequencies, latency_of),
        neighbour,
        note=f"Counted by its PTX: {note[:1].lower()}{note[1:]}",
    )


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
