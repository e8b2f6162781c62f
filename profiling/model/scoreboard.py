"""The time of one warp that has the SM for itself, from the scoreboards in its machine code.

The compiler writes into every instruction how many cycles the warp must wait before the next one, which scoreboard
the instruction releases, and which ones it waits for. Following them in order, with a latency for each kind of
result, gives the length of the warp's dependent chain, which only other warps can hide.

Asynchronous copies from global to shared memory (`LDGSTS`) go on in the background; they are bundled into groups
(`LDGDEPBAR`) and waited for in order (`DEPBAR`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mctskernel.profiling.architecture import Latency
from mctskernel.profiling.machine_code.functions import NO_BARRIER, Function, Instruction


@dataclass(frozen=True)
class Chain:
    """Cycles of one warp, and those of them spent waiting for global memory and at barriers."""

    cycles: float
    global_memory: float = 0.0
    barriers: float = 0.0


READ_RELEASE_CYCLES = 12.0  # from issue until a memory instruction has read its operands (assumed)
LEAST_SHARE = 0.05  # blocks that fewer of the warps pass through are left out

LatencyOf = Callable[[Instruction], tuple[float, str]]
"""Cycles until an instruction has its result, and the cause of the wait: `global`, `shared`, `barrier`, ..."""


def chain(function: Function, frequencies: Mapping[int, float], latency_of: LatencyOf) -> Chain:
    """Cycles of one warp, given how often each block runs and the latency of each instruction's result.

    A loop's body is followed twice, since one iteration leaves results pending for the next; every further iteration
    takes as long as the second.
    """
    warp = _Warp(function, frequencies, latency_of)
    warp.follow(None)
    waited = warp.waited
    return Chain(max(warp.now, *warp.ready), waited.get("global", 0.0), waited.get("barrier", 0.0))


def memory_latency(latency: Latency, global_cycles: Callable[[Instruction], float]) -> LatencyOf:
    """The latency of every instruction; `global_cycles` gives that of global loads, which depends on cache hits."""

    def latency_of(instruction: Instruction) -> tuple[float, str]:
        match instruction.mnemonic:
            case "LDG" | "LD" | "LDGSTS":
                return global_cycles(instruction), "global"
            case "ATOM" | "ATOMG":
                return latency.l2, "global"
            case "LDL":
                return latency.l1, "global"
            case "LDS" | "LDSM" | "ATOMS":
                return latency.shared, "shared"
            case "BAR":
                return latency.barrier, "barrier"
            case "MUFU" | "I2F" | "F2I" | "F2F" | "FRND" | "POPC" | "FLO" | "BREV" | "S2R" | "S2UR":
                return latency.special, "special"
            case _:
                return latency.shared, "other"

    return latency_of


@dataclass
class _Warp:
    """The state of a warp: its cycle, when each scoreboard is released, and the cycles waited by cause."""

    function: Function
    frequencies: Mapping[int, float]
    latency_of: LatencyOf
    now: float = 0.0
    ready: list[float] = field(default_factory=lambda: [0.0] * 6)
    cause: list[str] = field(default_factory=lambda: [""] * 6)
    waited: dict[str, float] = field(default_factory=dict)
    copying: float = 0.0
    groups: list[float] = field(default_factory=list)

    def follow(self, loop: int | None) -> None:
        """Run what lies directly inside a loop (the whole function for None), nested loops as they come."""
        base = self.frequencies[self.function.loops[loop].header] if loop is not None else 1.0
        if base <= 0:
            return
        for block, nested in self.function.blocks_by_loop.get(loop, ()):
            share = self.frequencies[block] / base
            if nested is not None:
                self._iterate(nested, share)
            else:
                self._run(self.function.code(block), min(1.0, share))

    def _iterate(self, loop: int, iterations: float) -> None:
        if iterations < LEAST_SHARE:
            return
        self.follow(loop)
        if iterations <= 1.0:
            return
        began, waited = self.now, dict(self.waited)
        self.follow(loop)
        self._repeat(iterations - 2.0, began, waited)

    def _repeat(self, times: float, began: float, waited: Mapping[str, float]) -> None:
        """Let what happened since `began` happen so many times more."""
        step = self.now - began
        self.now += times * step
        self.ready = [ready + times * step for ready in self.ready]
        self.groups = [done + times * step for done in self.groups]
        self.copying += times * step
        for cause, cycles in self.waited.items():
            self.waited[cause] = cycles + times * (cycles - waited.get(cause, 0.0))

    def _run(self, code: Sequence[Instruction], share: float) -> None:
        """Issue a block that the warp passes through with probability `share`."""
        if share < LEAST_SHARE:
            return
        began, waited = self.now, dict(self.waited)
        for instruction in code:
            self.issue(instruction)
        if share < 1.0:
            self._repeat(share - 1.0, began, waited)

    def issue(self, instruction: Instruction) -> None:
        for barrier in instruction.waits:
            if self.ready[barrier] > self.now:
                self._wait(self.cause[barrier], self.ready[barrier] - self.now)
        self._begin(instruction)
        if instruction.sets_on_read != NO_BARRIER:
            self._pending(instruction.sets_on_read, READ_RELEASE_CYCLES, "other")
        self.now += max(1, instruction.stall)

    def _begin(self, instruction: Instruction) -> None:
        """Start what goes on in the background, or wait for it."""
        match instruction.mnemonic:
            case "LDGSTS":
                self.copying = max(self.copying, self.now + self.latency_of(instruction)[0])
            case "LDGDEPBAR":
                self.groups.append(max(self.copying, self.now))
                self.copying = 0.0
            case "DEPBAR":
                self._wait_for_groups(_left_pending(instruction))
            case "BAR":
                cycles, cause = self.latency_of(instruction)
                self._wait(cause, cycles)
            case _ if instruction.sets_on_write != NO_BARRIER:
                self._pending(instruction.sets_on_write, *self.latency_of(instruction))

    def _wait_for_groups(self, left: int) -> None:
        """Until at most so many of the groups of copies are pending."""
        done = self.groups[: max(0, len(self.groups) - left)]
        self.groups = self.groups[len(done) :]
        if done:
            self._wait("global", max(0.0, max(done) - self.now))

    def _wait(self, cause: str, cycles: float) -> None:
        self.waited[cause] = self.waited.get(cause, 0.0) + cycles
        self.now += cycles

    def _pending(self, barrier: int, cycles: float, cause: str) -> None:
        done = self.now + cycles
        if done >= self.ready[barrier]:
            self.ready[barrier], self.cause[barrier] = done, cause


def _left_pending(instruction: Instruction) -> int:
    """How many groups a wait leaves pending: the last operand of `DEPBAR.LE SB0, 0x1`."""
    match = re.search(r"0x([0-9a-f]+)\s*$", instruction.operands)
    return int(match[1], 16) if match else 0
