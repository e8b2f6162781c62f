"""Runs block functions over groups of lanes: divergence, reconvergence, barriers and limits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mctskernel.profiling.emulator.arithmetic import V
from mctskernel.profiling.emulator.codegen import Program
from mctskernel.profiling.emulator.control_flow import Block, all_of
from mctskernel.profiling.emulator.findings import Finding, Findings, Kind
from mctskernel.profiling.emulator.lanes import Batch, Group, Lanes, PartialWarpError

_PATIENCE = 4  # times that blocks with atomics may run before those further on
_AHEAD = 2000  # basic blocks that a head start lasts, where what began first waits for what hasn't begun
_FAIRNESS = 2048  # block executions after which the highest group runs once, so that a spinning thread can be released


@dataclass(frozen=True)
class Limits:
    """When a run counts as hung: lane-instructions and basic blocks executed, or seconds of processor time.

    The first two give the same verdict on every machine; the seconds are for what they don't foresee. They are those
    of the thread that emulates: that others keep the machine busy is no fault of the kernel.
    """

    lane_instructions: int = 20_000_000_000
    block_executions: int = 100_000_000
    seconds: float = 30.0


DEFAULT_LIMITS = Limits()


class LimitExceededError(Exception):
    """The run was stopped at a limit; the finding says where."""


class MemoryPort:
    """What the machine and its block functions call; subclasses do something about what concerns them."""

    def executed(self, block: Block, lanes: Lanes) -> None:
        """A basic block is about to run."""

    def barrier(self, lanes: Lanes | None) -> None:
        """All threads of the lanes' blocks (of the batch, for None) have met."""

    def partial_barrier(self, lanes: Lanes, arrivals: Sequence[object] = ()) -> None:
        """The lanes' threads have met, and others of their blocks haven't, but for those that arrived before."""

    def arrived(self, lanes: Lanes) -> object:
        """The lanes' threads have arrived at a barrier and go on; the result is passed on to those that wait there."""

    def left(self, lanes: Lanes) -> None:
        """The lanes' threads have ended."""

    def finish_batch(self) -> None:
        """Every thread of the batch has left."""

    def fence(self, g: Lanes) -> None:
        """`membar` or `fence`."""

    def warp_barrier(self, g: Lanes, mask: V) -> None:
        """`bar.warp.sync`."""

    def converged(self, g: Lanes, mask: V, line: int) -> None:
        """A warp operation with a mask is about to run."""

    def absent_source(self, g: Lanes, absent: np.ndarray, origin: np.ndarray, mask: V, line: int) -> None:
        """A shuffle reads lanes that don't take part."""

    def commit(self, g: Lanes) -> None:
        """`cp.async.commit_group`."""

    def wait(self, g: Lanes, keep: int | None) -> None:
        """`cp.async.wait_group`, or `wait_all` for None."""


@dataclass
class Waiting:
    """Lanes at a barrier for all threads or `count`; with an `arrival` they have gone on, and count nonetheless."""

    group: Group
    block: Block
    number: V
    count: V | None
    arrival: object = None

    @cached_property
    def arrived(self) -> dict[int, tuple[np.ndarray, int | None]]:
        """By barrier: how many threads of each block of the batch, and for how many it is."""
        lanes = self.group.lanes
        count = None if self.count is None else int(np.max(self.count))
        if self.number.ndim == 0:
            return {int(self.number): (np.bincount(lanes.block_index, minlength=lanes.batch.count), count)}
        return {
            int(n): (np.bincount(lanes.block_index[self.number == n], minlength=lanes.batch.count), count)
            for n in np.unique(self.number)
        }

    def rest(self, group: Group, chosen: np.ndarray) -> Waiting:
        """The chosen lanes, which are those of `group`."""
        number = self.number if self.number.ndim == 0 else self.number[chosen]
        count = self.count if self.count is None or self.count.ndim == 0 else self.count[chosen]
        return Waiting(group, self.block, number, count, self.arrival)


class Machine:
    """Executes batches of thread blocks, the lowest basic block first."""

    def __init__(self, program: Program, findings: Findings, limits: Limits) -> None:
        self.program = program
        self.findings = findings
        self.limits = limits
        self.lane_instructions = 0
        self.steps = 0
        self._deadline = time.thread_time() + limits.seconds
        strong = [each for each in program.accesses if each.strong]
        self._contended = {each.block for each in strong}
        self._changing = {each.block for each in strong if each.kind != "load" and "_wait" not in each.opcode}
        self._changes = self._tries = 0
        self._idle: dict[int, int] = {}
        """Blocks that lanes have just tried in vain, with the number of changes then."""

    def run(self, batch: Batch, port: MemoryPort, head_start: int = 0) -> None:
        """Run a batch to its end; raises `LimitExceededError`.

        Where results may depend on it, because there are atomics, the first `head_start` blocks run before the others
        begin, as far as they come alone.
        """
        self.port = port
        self.batch = batch
        self.ready: dict[int, Group] = {0: Group(batch.full, list(self.program.defaults))}
        self.waiting: list[Waiting] = []
        self.arrivals: list[Waiting] = []
        self.alive = np.full(batch.count, batch.geometry.threads)
        self.alive_total = int(self.alive.sum())
        if self._contended and head_start < batch.count:
            self._run_ahead(batch, head_start)
        while self.ready or self.waiting:
            if not self.ready and not self._release():
                self._deadlock()
                break
            self._step()
        port.finish_batch()

    def _run_ahead(self, batch: Batch, blocks: int) -> None:
        first = batch.full.block_index < blocks
        if not first.any():
            return
        everyone = self.ready.pop(0)
        self.ready[0] = self._part(0, everyone, np.flatnonzero(first))
        for _ in range(_AHEAD):
            if not self.ready and not (self.waiting and self._release()):
                break
            self._step()
        self._arrive(0, self._part(0, everyone, np.flatnonzero(~first)))

    def _step(self) -> None:
        number = self._next()
        group = self.ready.pop(number)
        block = self.program.blocks[number]
        lanes = group.lanes
        self.steps += 1
        self.lane_instructions += self.program.lengths[number] * lanes.n
        if limit := self._limit_reached():
            self._exceeded(limit, block, lanes)
        self.port.executed(block, lanes)
        try:
            outcome: Any = self.program.functions[number](self.port, lanes, group.registers)
        except PartialWarpError:
            self._partial_warp(block, lanes)
            return
        if block.end == "jump":
            self._arrive(block.targets[0], group)
        elif block.end == "branch":
            self._branch(block, group, outcome)
        elif block.end == "barrier":
            self._barrier(block, group, outcome)
        elif block.end == "switch":
            self._switch(block, group, outcome)
        else:
            self._leave(block, lanes)
        if number in self._changing:
            self._changes += 1
        elif number in self._contended and number in block.targets and number in self.ready:
            self._idle[number] = self._changes

    def _next(self) -> int:
        """Lowest block first; blocks with warp operations wait for lanes of their warps that can still come."""
        ready = self.ready
        if self._idle and self.steps % _PATIENCE**3:
            # Nothing has changed that lanes may wait for.
            ready = {n: ready[n] for n in self._free(ready) if self._idle.get(n) != self._changes} or ready
        number = next(iter(ready)) if len(ready) == 1 else self._lowest(ready)
        if number not in self._contended or not (self.waiting or len(ready) > 1):
            return number
        # Lanes that try an atomic again and again may wait for lanes that are further on, or wait at a barrier.
        self._tries += 1
        if self._tries % _PATIENCE:
            return number
        if self.waiting:
            self._release()
        # Any of them may be what the others wait for.
        free = sorted(self._free(ready) or [number])
        return free[-1 - self._tries // _PATIENCE % len(free)]

    def _lowest(self, ready: dict[int, Group]) -> int:
        free = self._free(ready)
        if not free:
            return min(ready)
        return max(free) if self.steps % _FAIRNESS == _FAIRNESS - 1 else min(free)

    def _free(self, ready: dict[int, Group]) -> list[int]:
        """Blocks that no lane has to wait in."""
        return [n for n in ready if not self.program.warp_synchronous[n] or ready[n].lanes.whole_warps]

    def _limit_reached(self) -> str:
        """The limit that the run has just passed, in words; empty while it hasn't."""
        if self.lane_instructions > self.limits.lane_instructions:
            return f"{self.limits.lane_instructions:,} lane-instructions"
        if self.steps > self.limits.block_executions:
            return f"{self.limits.block_executions:,} basic blocks"
        if self.steps % 256 == 0 and time.thread_time() > self._deadline:
            return f"{self.limits.seconds:g} seconds"
        return ""

    def _exceeded(self, limit: str, block: Block, lanes: Lanes) -> None:
        line = next((i.line for i in all_of(block) if i.line), None)
        text = f"still running after the limit of {limit}: {{who}} is near line {line}; it spins, or waits for a block "
        self._find("limit", text + "that doesn't run at the same time", line, int(lanes.slots[0]))
        raise LimitExceededError

    def _find(
        self, kind: Kind, text: str, line: int | None, slot: int, other_line: int | None = None
    ) -> None:
        """Add a finding; `{who}` in its text is the thread in a slot."""
        who = f"thread {self.batch.thread_of(slot)} of block {self.batch.block_of(slot)}"
        self.findings.add(Finding(kind, text.format(who=who), line, other_line))

    def _partial_warp(self, block: Block, lanes: Lanes) -> None:
        """A tensor instruction in divergent code is undefined: say so and stop these lanes."""
        line = next(
            (i.line for i in block.instructions if i.parts[0] in ("mma", "wmma", "ldmatrix", "stmatrix")),
            None,
        )
        text = f"line {line}: a part of the warp of {{who}} executes a tensor instruction"
        self._find("divergent_warp", text, line, int(lanes.slots[0]))
        self._leave(self.program.blocks[-1], lanes)

    def _arrive(self, number: int, group: Group) -> None:
        other = self.ready.get(number)
        self._idle.pop(number, None)
        self.ready[number] = group if other is None else self._merge(number, other, group)

    def _merge(self, number: int, a: Group, b: Group) -> Group:
        live = self.program.live_slots[number]
        slots = np.concatenate([a.lanes.slots, b.lanes.slots])
        order = np.argsort(slots, kind="stable")
        lanes = self.batch.full if len(slots) == self.batch.full.n else Lanes(self.batch, slots[order])
        registers: list[V] = list(self.program.defaults)
        for slot in live:
            x, y = a.registers[slot], b.registers[slot]
            if x.ndim == 0 and y.ndim == 0 and x.tobytes() == y.tobytes():
                registers[slot] = x
                continue
            both = np.empty(len(order), x.dtype if x.dtype == y.dtype else np.result_type(x, y))
            both[: a.lanes.n] = x
            both[a.lanes.n :] = y
            registers[slot] = both.take(order)
        return Group(lanes, registers)

    def _part(self, number: int, group: Group, chosen: np.ndarray) -> Group:
        registers: list[V] = list(self.program.defaults)
        for slot in self.program.live_slots[number]:
            value = group.registers[slot]
            registers[slot] = value if value.ndim == 0 else value.take(chosen)
        return Group(group.lanes.subset(chosen), registers)

    def _branch(self, block: Block, group: Group, condition: V) -> None:
        taken, other = block.targets
        if condition.ndim == 0:
            self._arrive(taken if condition else other, group)
            return
        count = int(np.count_nonzero(condition))
        if count == group.lanes.n:
            self._arrive(taken, group)
        elif count == 0:
            self._arrive(other, group)
        elif taken == other:
            self._arrive(taken, group)
        else:
            for number, chosen in ((taken, np.flatnonzero(condition)), (other, np.flatnonzero(~condition))):
                self._arrive(number, self._part(number, group, chosen))

    def _switch(self, block: Block, group: Group, selector: V) -> None:
        last = len(block.targets) - 1
        if selector.ndim == 0:
            self._arrive(block.targets[min(int(selector), last)], group)
            return
        for value in np.unique(selector):
            chosen = np.flatnonzero(selector == value)
            number = block.targets[min(int(value), last)]
            self._arrive(number, self._part(number, group, chosen))

    def _leave(self, block: Block, lanes: Lanes) -> None:
        if block.end == "trap":
            line = block.final.line if block.final else None
            self._find("trap", f"{{who}} executes trap at line {line}", line, int(lanes.slots[0]))
        self.port.left(lanes)
        self.alive -= np.bincount(lanes.block_index, minlength=self.batch.count)
        self.alive_total -= lanes.n

    def _barrier(self, block: Block, group: Group, outcome: tuple[str, V, V | None]) -> None:
        kind, number, count = outcome
        if kind == "sync" and group.lanes.n == self.alive_total and number.ndim == 0:
            complete = count is None or (
                count.ndim == 0 and int(count) * self.batch.count == self.alive_total
            )
            if complete and not self.waiting and not self.arrivals:
                self.port.barrier(None)
                self._arrive(block.targets[0], group)
                return
        if kind == "arrive":
            self.arrivals.append(Waiting(group, block, number, count, self.port.arrived(group.lanes)))
            self._arrive(block.targets[0], group)
        else:
            self.waiting.append(Waiting(group, block, number, count))
        while self.arrivals and self._release():
            pass

    def _release(self) -> bool:
        """Let the blocks go whose threads have all arrived; False when nothing can."""
        arrived = [w.arrived for w in (*self.waiting, *self.arrivals)]
        numbers = sorted({n for each in arrived for n in each})
        released = False
        for number in numbers:
            total = sum(each[number][0] for each in arrived if number in each)
            needed = np.minimum(self.alive, self.batch.slots_per_block)
            for each in arrived:
                count = each[number][1] if number in each else None
                if count is not None:
                    needed = np.full_like(needed, count)
            go = (total >= needed) & (total > 0)
            if go.any():
                counted = any(each[number][1] is not None for each in arrived if number in each)
                # Threads may meet at a barrier of so many from anywhere, but not more of them than it is for.
                self._check_convergence(number, go & (total > needed) if counted else go)
                self._let_go(number, go)
                released = True
                break
        return released

    def _check_convergence(self, number: int, go: np.ndarray) -> None:
        if not go.any():
            return
        here = [w for w in self.waiting if (np.broadcast_to(w.number, w.group.lanes.n) == number).any()]
        for w in here[1:]:
            if w.block is here[0].block:
                continue
            both = go & np.isin(np.arange(self.batch.count), w.group.lanes.block_index)
            both &= np.isin(np.arange(self.batch.count), here[0].group.lanes.block_index)
            if both.any():
                self._divergent(here[0], w, int(np.flatnonzero(both)[0]))

    def _divergent(self, a: Waiting, b: Waiting, block: int) -> None:
        slots = [int(w.group.lanes.slots[w.group.lanes.block_index == block][0]) for w in (a, b)]
        lines = [w.block.final.line if w.block.final else None for w in (a, b)]
        text = (
            f"threads of a block meet at different barriers: {{who}} waits at line {lines[0]}, "
            f"thread {self.batch.thread_of(slots[1])} at line {lines[1]}"
        )
        self._find("divergent_barrier", text, lines[0], slots[0], lines[1])

    def _deadlock(self) -> None:
        w = self.waiting[0]
        line = w.block.final.line if w.block.final else None
        text = f"{{who}} waits at the barrier of line {line} for threads that never come"
        self._find("divergent_barrier", text, line, int(w.group.lanes.slots[0]))

    def _let_go(self, number: int, go: np.ndarray) -> None:
        still: list[Waiting] = []
        leaving: list[tuple[Block, Group]] = []
        for w in self.waiting:
            lanes = w.group.lanes
            out = go[lanes.block_index] & (np.broadcast_to(w.number, lanes.n) == number)
            if out.all():
                leaving.append((w.block, w.group))
                continue
            if out.any():
                leaving.append((w.block, self._part(w.block.targets[0], w.group, np.flatnonzero(out))))
                rest = np.flatnonzero(~out)
                still.append(w.rest(self._part(w.block.targets[0], w.group, rest), rest))
            else:
                still.append(w)
        self.waiting = still
        arrivals = self._consume(number, go)
        if not leaving:
            return
        members = np.concatenate([group.lanes.slots for _, group in leaving])
        self._met(Lanes(self.batch, np.sort(members)), arrivals)
        for block, group in leaving:
            self._arrive(block.targets[0], group)

    def _consume(self, number: int, go: np.ndarray) -> list[object]:
        """Arrivals at a barrier that blocks have passed count no more."""
        consumed: list[object] = []
        left: list[Waiting] = []
        for w in self.arrivals:
            lanes = w.group.lanes
            out = go[lanes.block_index] & (np.broadcast_to(w.number, lanes.n) == number)
            if out.any():
                consumed.append(w.arrival)
            if not out.all():
                rest = np.flatnonzero(~out)
                left.append(w.rest(Group(lanes.subset(rest), list(self.program.defaults)), rest))
        self.arrivals = left
        return consumed

    def _met(self, lanes: Lanes, arrivals: Sequence[object]) -> None:
        """Tell the memory who met: whole blocks, or a part of one."""
        met = np.bincount(lanes.block_index, minlength=self.batch.count)
        whole = (met >= self.alive)[lanes.block_index]
        if whole.any():
            self.port.barrier(lanes.subset(np.flatnonzero(whole)))
        if not whole.all():
            self.port.partial_barrier(lanes.subset(np.flatnonzero(~whole)), arrivals)


def batches(blocks: Sequence[int], threads: int) -> list[np.ndarray]:
    """Block numbers in batches of about 8192 lanes, the size that stays in the processor's cache."""
    size = max(1, 8192 // max(threads, 1))
    return [np.asarray(blocks[i : i + size]) for i in range(0, len(blocks), size)]
