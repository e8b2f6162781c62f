"""How long one warp takes through the machine code, as its scoreboards see it.

The compiler writes into every instruction how many cycles the warp must wait before the next one, which
scoreboard the instruction releases, and which ones it waits for. Following them in order, with a latency for
each kind of result, gives the warp's time when it has the SM for itself: the chain that only other warps can
hide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mctskernel.profiling.architecture import Latency
from mctskernel.profiling.machine_code.functions import Function
from mctskernel.profiling.machine_code.instructions import NO_BARRIER, Instruction


@dataclass(frozen=True)
class Chain:
    """One warp's path through the kernel as its scoreboards see it, in cycles.

    `cycles` is the whole; the others are the parts of it spent waiting for global memory, for shared memory
    and at barriers.
    """

    cycles: float
    global_memory: float = 0.0
    shared_memory: float = 0.0
    barriers: float = 0.0


READ_RELEASE_CYCLES = 12.0
"""From issue until a memory instruction has read its operands (assumed)."""

LEAST_SHARE = 0.05
"""Blocks that fewer of the warps pass through are left out."""

LatencyOf = Callable[[Instruction], tuple[float, str]]
"""Cycles until an instruction has its result, and what is waited for: `global`, `shared`, `barrier`, ..."""


def chain(function: Function, frequencies: Mapping[int, float], latency_of: LatencyOf) -> Chain:
    """Cycles of one warp, given how often each block runs and the latency of each instruction's result.

    A loop's body is followed twice, so that what one iteration leaves pending is seen by the next; the second
    time is what every further iteration takes.
    """
    warp = _Warp(function, frequencies, latency_of)
    warp.follow(None)
    waited = warp.waited
    return Chain(
        max(warp.now, *warp.ready),
        waited.get("global", 0.0),
        waited.get("shared", 0.0),
        waited.get("barrier", 0.0),
    )


def path_chain(function: Function, path: Sequence[int], latency_of: LatencyOf) -> Chain:
    """Cycles of a warp that goes through these basic blocks, indices of `function.blocks`.

    What a block takes follows from the scoreboards that are pending at its top. Loops soon come by the same state
    again, so each state is followed once.
    """
    idle = (0.0,) * _SCOREBOARDS, ("",) * _SCOREBOARDS
    state, now = idle, 0.0
    waited: dict[str, float] = {}
    known: dict[object, _Passage] = {}
    for block in path:
        passage = known.get((block, state))
        if passage is None:
            passage = known[block, state] = _pass(function, block, state, latency_of)
        now += passage.cycles
        state = passage.state
        for cause, cycles in passage.waited:
            waited[cause] = waited.get(cause, 0.0) + cycles
    return Chain(
        now + max(state[0]),
        waited.get("global", 0.0),
        waited.get("shared", 0.0),
        waited.get("barrier", 0.0),
    )


_SCOREBOARDS = 6

_Pending = tuple[tuple[float, ...], tuple[str, ...]]
"""For each scoreboard, the cycles until it is released, and what is waited for; nothing where there is no wait."""


@dataclass(frozen=True)
class _Passage:
    """A warp's way through a basic block: cycles, scoreboards at its end, and what was waited for."""

    cycles: float
    state: _Pending
    waited: tuple[tuple[str, float], ...]


def _pass(function: Function, block: int, state: _Pending, latency_of: LatencyOf) -> _Passage:
    warp = _Warp(function, {}, latency_of, ready=list(state[0]), cause=list(state[1]))
    for instruction in function.code(block):
        warp.issue(instruction)
    left = tuple(max(0.0, ready - warp.now) for ready in warp.ready)
    causes = tuple(cause if cycles else "" for cause, cycles in zip(warp.cause, left, strict=True))
    return _Passage(warp.now, (left, causes), tuple(warp.waited.items()))


def memory_latency(latency: Latency, global_cycles: Callable[[Instruction], float]) -> LatencyOf:
    """The usual latencies, with that of loads from global memory left to the caller, who knows what hits."""

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
    """A warp on its way: the cycle it is at, when each scoreboard is released, and what it waited for."""

    function: Function
    frequencies: Mapping[int, float]
    latency_of: LatencyOf
    now: float = 0.0
    ready: list[float] = field(default_factory=lambda: [0.0] * 6)
    cause: list[str] = field(default_factory=lambda: [""] * 6)
    waited: dict[str, float] = field(default_factory=dict)

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
        """Wait for what the instruction waits for, and issue it."""
        for barrier in instruction.waits:
            if self.ready[barrier] > self.now:
                self._wait(self.cause[barrier], self.ready[barrier] - self.now)
        if instruction.sets_on_write != NO_BARRIER:
            self._pending(instruction.sets_on_write, *self.latency_of(instruction))
        if instruction.sets_on_read != NO_BARRIER:
            self._pending(instruction.sets_on_read, READ_RELEASE_CYCLES, "other")
        if instruction.mnemonic == "BAR":
            cycles, cause = self.latency_of(instruction)
            self._wait(cause, cycles)
        self.now += max(1, instruction.stall)

    def _wait(self, cause: str, cycles: float) -> None:
        self.waited[cause] = self.waited.get(cause, 0.0) + cycles
        self.now += cycles

    def _pending(self, barrier: int, cycles: float, cause: str) -> None:
        done = self.now + cycles
        if done >= self.ready[barrier]:
            self.ready[barrier], self.cause[barrier] = done, cause
