"""What threads do while they run with every check on, measured as it is where they are only counted.

A kernel that can tell the two apart may do more, or something dearer, in one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mctskernel.profiling.emulator.arithmetic import V
from mctskernel.profiling.emulator.codegen import Access
from mctskernel.profiling.emulator.control_flow import Block
from mctskernel.profiling.emulator.counting import Counts
from mctskernel.profiling.emulator.lanes import Lanes
from mctskernel.profiling.emulator.patterns import Patterns
from mctskernel.profiling.emulator.ptx import Instruction

SCHEDULERS = 4
"""Warp instructions that a multiprocessor issues in a cycle."""


@dataclass
class Tallies:
    """By number of the basic block how many warps executed it; what accesses took.

    `passed` are the cycles in which L1 and shared memory pass them, and the turns of atomics; `moved` are sectors.
    """

    warps: dict[int, int] = field(default_factory=dict)
    passed: int = 0
    moved: int = 0
    patterns: Patterns = field(default_factory=Patterns)

    def executed(self, block: Block, lanes: Lanes) -> None:
        """A basic block is about to run."""
        self.warps[block.number] = self.warps.get(block.number, 0) + len(lanes.warp_starts)

    def access(self, access: Access, g: Lanes, address: V, mask: V | None) -> None:
        """Lanes access memory."""
        if mask is not None and mask.ndim == 0:
            if not mask:
                return
            mask = None
        once, _ = self.patterns.measure(access, g, address, mask)
        self.passed += once.lines + once.wavefronts + once.same_address_lanes
        self.moved += 0 if once.sectors is None else len(once.sectors)


def cycles_executed(tallies: Tallies, blocks: Sequence[Block]) -> float:
    """About how many cycles of a multiprocessor a run took, to compare it with one that was counted."""
    return _issued(tallies.warps, blocks) / SCHEDULERS + tallies.passed + tallies.moved


def cycles_counted(counts: Counts, blocks: Sequence[Block]) -> float:
    """The same of blocks that were counted."""
    warps = {each.number: each.warp_executions for each in counts.basic_blocks}
    passed = sum(each.lines + each.wavefronts + each.same_address_lanes for each in counts.accesses)
    moved = sum(each.sectors for each in counts.accesses if each.space == "global")
    return _issued(warps, blocks) / SCHEDULERS + passed + moved


def _issued(warps: Mapping[int, int], blocks: Sequence[Block]) -> float:
    every = {block.number: [*block.instructions, *filter(None, [block.final])] for block in blocks}
    return sum(times * sum(map(_machine_instructions, every[number])) for number, times in warps.items())


def _machine_instructions(instruction: Instruction) -> int:
    """About how many machine instructions one of PTX becomes, or as many as take as long."""
    base, type_ = instruction.parts[0], instruction.parts[-1]
    if base in ("div", "rem", "sqrt", "rcp", "rsqrt"):
        if "approx" in instruction.parts:
            return _SPECIAL
        return {"f32": 9, "f64": 40, "s64": 70, "u64": 70}.get(type_, 16)
    if base in ("ex2", "lg2", "sin", "cos", "tanh"):
        return _SPECIAL
    if type_ == "f64" and base in ("add", "sub", "mul", "fma", "mad"):
        return 2
    if base in ("mul", "mad") and type_ in ("s64", "u64", "b64") and "wide" not in instruction.parts:
        return 4
    return 1


_SPECIAL = 4
