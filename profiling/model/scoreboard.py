"""How long one warp takes through the machine code, as its scoreboards see it.

The compiler writes into every instruction how many cycles the warp must wait before the next one, which
scoreboard the instruction releases, and which ones it waits for. Following them in order, with a latency for
each kind of result, gives the warp's time when it has the SM for itself: the chain that only other warps can
hide.

Two kinds of work go on behind the warp's back: copies from global to shared memory (`LDGSTS`), which are bundled
into groups (`LDGDEPBAR`) and waited for in order (`DEPBAR`), and products of a warp group (`HGMMA`), which queue up
in the tensor cores until they are waited for (`WARPGROUP.DEPBAR`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile

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
    return _chain(max(warp.now, warp.tensor, *warp.ready), warp.waited)


def path_chain(function: Function, path: Sequence[int], latency_of: LatencyOf) -> Chain:
    """Cycles of a warp that goes through these basic blocks, indices of `function.blocks`.

    What a block takes follows from the scoreboards that are pending at its top. Loops soon come by the same state
    again, so each state is followed once.
    """
    state, now = _Pending(), 0.0
    waited: dict[str, float] = {}
    known: dict[tuple[int, _Pending], _Passage] = {}
    for block in path:
        passage = known.get((block, state))
        if passage is None:
            passage = known[block, state] = _pass(function, block, state, latency_of)
        now += passage.cycles
        state = passage.state
        for cause, cycles in passage.waited:
            waited[cause] = waited.get(cause, 0.0) + cycles
    return _chain(now + state.longest, waited)


def mean_chain(chains: Sequence[Chain]) -> Chain:
    """What warps take at the mean."""
    number = len(chains)
    return Chain(
        sum(each.cycles for each in chains) / number,
        sum(each.global_memory for each in chains) / number,
        sum(each.shared_memory for each in chains) / number,
        sum(each.barriers for each in chains) / number,
    )


_SCOREBOARDS = 6


@dataclass(frozen=True)
class _Pending:
    """What a warp may have to wait for, in cycles from now; nothing of it is negative.

    `ready` and `cause` are the scoreboards', `copying` the copies that are in no group yet, `groups` the groups in
    order, `tensor` the products of the tensor cores.
    """

    ready: tuple[float, ...] = (0.0,) * _SCOREBOARDS
    cause: tuple[str, ...] = ("",) * _SCOREBOARDS
    copying: float = 0.0
    groups: tuple[float, ...] = ()
    tensor: float = 0.0

    @property
    def longest(self) -> float:
        """Until nothing is pending."""
        return max(*self.ready, self.copying, self.tensor, *self.groups)


@dataclass(frozen=True)
class _Passage:
    """A warp's way through a basic block: cycles, what is pending at its end, and what was waited for."""

    cycles: float
    state: _Pending
    waited: tuple[tuple[str, float], ...]


def _pass(function: Function, block: int, state: _Pending, latency_of: LatencyOf) -> _Passage:
    warp = _Warp(
        function,
        {},
        latency_of,
        ready=list(state.ready),
        cause=list(state.cause),
        copying=state.copying,
        groups=list(state.groups),
        tensor=state.tensor,
    )
    for instruction in function.code(block):
        warp.issue(instruction)

    def left(done: float) -> float:
        return max(0.0, done - warp.now)

    ready = tuple(map(left, warp.ready))
    cause = tuple(cause if cycles else "" for cause, cycles in zip(warp.cause, ready, strict=True))
    # One that is done counts as long as one before it isn't: waits count groups from the latest back.
    groups = tuple(map(left, dropwhile(lambda done: done <= warp.now, warp.groups)))
    pending = _Pending(ready, cause, left(warp.copying), groups, left(warp.tensor))
    return _Passage(warp.now, pending, tuple(warp.waited.items()))


def _chain(cycles: float, waited: Mapping[str, float]) -> Chain:
    return Chain(cycles, waited.get("global", 0.0), waited.get("shared", 0.0), waited.get("barrier", 0.0))


def memory_latency(
    latency: Latency,
    global_cycles: Callable[[Instruction], float],
    tensor_cycles: Callable[[Instruction], float],
) -> LatencyOf:
    """The usual latencies; the caller knows what global loads hit, and how long the tensor cores take for a product."""

    def latency_of(instruction: Instruction) -> tuple[float, str]:
        match instruction.mnemonic:
            case "HGMMA" | "IGMMA" | "QGMMA" | "BGMMA":
                return tensor_cycles(instruction), "tensor"
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
    copying: float = 0.0
    groups: list[float] = field(default_factory=list)
    tensor: float = 0.0

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
        self.tensor += times * step
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
        self._begin(instruction)
        if instruction.sets_on_read != NO_BARRIER:
            self._pending(instruction.sets_on_read, READ_RELEASE_CYCLES, "other")
        self.now += max(1, instruction.stall)

    def _begin(self, instruction: Instruction) -> None:
        """Start what goes on behind the warp's back, or wait for it."""
        match instruction.mnemonic:
            case "LDGSTS":
                self.copying = max(self.copying, self.now + self.latency_of(instruction)[0])
            case "LDGDEPBAR":
                self.groups.append(max(self.copying, self.now))
                self.copying = 0.0
            case "DEPBAR":
                self._wait_for_groups(_left_pending(instruction))
            case "HGMMA" | "IGMMA" | "QGMMA" | "BGMMA":
                self.tensor = max(self.tensor, self.now) + self.latency_of(instruction)[0]
            case "WARPGROUP" if "DEPBAR" in instruction.opcode and not _left_pending(instruction):
                self._wait("tensor", max(0.0, self.tensor - self.now))
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
