"""Whether blocks do as much work when they run as they were priced for.

A price is made from few blocks, counted without what earlier launches left in memory. A kernel that can tell counting
from running (by such contents, by a clock, by how memory is laid out), or that knows which blocks are counted, could
work elsewhere. So what blocks execute when they run is compared with what was counted.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from mctskernel.core.launch_plan import ResolvedLaunch, ResolvedPlan
from mctskernel.core.task import Array
from mctskernel.profiling.candidate import Candidate
from mctskernel.profiling.emulator import Module
from mctskernel.profiling.emulator.launch import flow_of
from mctskernel.profiling.emulator.tallies import cycles_counted
from mctskernel.profiling.emulator.turns import Place
from mctskernel.profiling.model.blocks import BlockCounter, sampled_blocks
from mctskernel.profiling.model.choice_of_blocks import middle_block

BOTH_ENDS_AND_MIDDLE = 3
"""The blocks that most prices are made from."""

RUN_APART = 1.5
"""How many times as many instructions as were counted a block may execute: short branches are counted as predicated."""

UNEVEN = 1.25
"""How many times as much as is priced other blocks may execute that are all alike."""

VERY_UNEVEN = 2.0
"""The same of the mean of blocks that aren't, chance aside: some share out tiles that don't come out even."""

ONE_UNEVEN = 2.5
"""The same for a single block, which in a causal kernel may well do twice the mean."""

LEAST_FOR_SHARES = 4
LANES_FOR_SHARES = 4_000_000
"""How many blocks are counted at the least to see what they store, and lane instructions of all of them."""


@dataclass(frozen=True)
class CountedBlock:
    """About how many cycles of a multiprocessor a block takes, and the bytes that its threads store."""

    cycles: float
    stored_bytes: int


@dataclass(frozen=True)
class PricedBlocks:
    """Lane instructions of a launch's middle block, and of the mean block, as its `counter` has them for a price.

    `decisive` are buffers whose contents decide what blocks execute. `idle_middle` says that the middle block does so
    little that the price is made from blocks all over the grid. From `counters` all blocks draw their work.
    """

    counter: BlockCounter
    middle: int
    mean: float
    decisive: frozenset[str] = frozenset()
    idle_middle: bool = False
    counters: frozenset[Place] = frozenset()
    middle_block: int = 0
    counted: Callable[[int], CountedBlock | None] = lambda _: None

    def dearer(self, block: int, executed: float) -> str:
        """A sentence's end about a block that takes so many cycles when it runs, and fewer when it is counted."""
        found = self.counted(block)
        if found is None or executed <= RUN_APART * found.cycles:
            return ""
        return (
            f"block {block} takes {executed:,.0f} cycles of instructions and accesses when it runs, and "
            f"{found.cycles:,.0f} where it is counted for a price."
        )

    def stored_by_others(self, blocks: Sequence[int]) -> float:
        """How many times as much as the middle block these store at the mean, chance on their side."""
        middle, mean = self.counted(self.middle_block), self.stored_bytes(blocks)
        return mean / middle.stored_bytes if mean is not None and middle and middle.stored_bytes else 1.0

    def stored_bytes(self, blocks: Sequence[int]) -> float | None:
        """What threads of these blocks store at the mean, chance on their side; of fewer blocks if they are long."""
        stored: list[int] = []
        most = max(LEAST_FOR_SHARES, LANES_FOR_SHARES // max(1, self.middle))
        for block in blocks[:most]:
            found = self.counted(block)
            if found is None:
                return None
            stored.append(found.stored_bytes)
        return statistics.fmean(stored) + 3.0 * statistics.stdev(stored) / math.sqrt(len(stored))

    def apart(self, middle: int, others: Sequence[int]) -> str:
        """A sentence's end about blocks that execute more than is priced: the middle one, and some at random."""
        return self._unlike_running(middle) or self._unlike_others(others)

    def apart_together(self, executed: Sequence[int]) -> str:
        """The same about blocks of which one ends what all have begun: all of them together."""
        mean = statistics.fmean(executed)
        if mean <= RUN_APART * self.mean:
            return ""
        return (
            f"blocks that end a piece of work together execute {mean:,.0f} instructions of a thread at the mean, and "
            f"those that the price is made from {self.mean:,.0f}."
        )

    def _unlike_running(self, executed: int) -> str:
        if executed <= RUN_APART * self.middle:
            return ""
        return (
            f"the block that is taken for all others executes {executed:,} instructions of a thread when it runs, "
            f"and {self.middle:,} where it is priced."
        )

    def _unlike_others(self, executed: Sequence[int]) -> str:
        if not executed:
            return ""
        mean = statistics.fmean(executed)
        if len(executed) == 1:
            certain = mean / ONE_UNEVEN
        else:
            spread = statistics.stdev(executed)
            certain = max(
                mean - 2 * spread, (mean - 2 * spread / len(executed) ** 0.5) * UNEVEN / VERY_UNEVEN
            )
            certain /= UNEVEN
        if certain <= self.mean:
            return ""
        return (
            f"blocks at random execute {mean:,.0f} instructions of a thread at the mean, and those that the price "
            f"is made from {self.mean:,.0f}."
        )


def count_priced(
    candidate: Candidate,
    launch: ResolvedLaunch,
    module: Module,
    plan: ResolvedPlan,
    *,
    buffers: Mapping[str, int],
    contents: Callable[[str], Array],
) -> PricedBlocks | None:
    """Count a launch as for its price; None where it can't be counted by its PTX.

    `buffers` gives the bytes of the task's tensors, `contents` an array for those whose contents decide.
    """
    counter = BlockCounter(
        module, candidate.entry_of(launch), launch, plan, buffers=buffers, contents=contents
    )
    entry = candidate.entry_of(launch)

    @cache
    def counted(block: int) -> CountedBlock | None:
        counts = counter.emulated(block)
        if isinstance(counts, str):
            return None
        stored = sum(
            each.lanes * each.bytes_per_lane
            for each in counts.accesses
            if each.space == "global" and each.kind in {"store", "atomic", "reduction"}
        )
        return CountedBlock(cycles_counted(counts, flow_of(module, entry).blocks), stored)

    at = middle_block(launch.grid)
    middle = counter.emulated(at)
    if isinstance(middle, str):
        return None
    if counter.data_dependent:
        # A price has more blocks then, all over the grid: to count those again takes as long as the rest of the gate.
        return PricedBlocks(
            counter,
            middle.lane_instructions,
            middle.lane_instructions,
            counter.decisive,
            counters=counter.counters,
            counted=counted,
            middle_block=at,
        )
    sampled = sampled_blocks(counter)
    if isinstance(sampled, str):
        return None
    mean = sum(weight * counts.lane_instructions for _, counts, weight in sampled) / launch.blocks
    all_over = len(sampled) > BOTH_ENDS_AND_MIDDLE
    return PricedBlocks(
        counter,
        middle.lane_instructions,
        mean,
        counter.decisive,
        idle_middle=all_over,
        counters=counter.counters,
        counted=counted,
        middle_block=at,
    )
