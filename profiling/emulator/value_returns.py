"""The ABA problem: a compare-and-swap that succeeds because a value came back, not because nothing had happened.

A thread sees X in a place, reads another place that others change, and swaps X for what it made of both. If the place
held something else in between and then X again, the swap succeeds with what it read outdated. No schedule has to show
it: it is enough that in this launch the value went away and returned, and that what was read was changed by others.
A place whose values carry a tag that only grows never returns, and a loop that computes from the value alone is right
whenever the value is.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from mctskernel.profiling.emulator.arithmetic import V
from mctskernel.profiling.emulator.codegen import Access
from mctskernel.profiling.emulator.findings import Finding, Findings
from mctskernel.profiling.emulator.lanes import Batch, Lanes
from mctskernel.profiling.emulator.memory import Buffer
from mctskernel.profiling.emulator.resolve import Part

_REMEMBERED = 64  # accesses between seeing a value and swapping it
_STUDIED = 64  # swaps of one instruction
_HISTORY = 4096  # values of one place

Place = tuple[int, int]
"""A storage and the index of a 4-byte unit in it."""


@dataclass(frozen=True, slots=True)
class _Seen:
    access: Access
    lanes: Lanes
    part: Part
    values: V


@dataclass(frozen=True, slots=True)
class _Swap:
    """A swap that would be wrong if its value can return: who, where, what, and what was read meanwhile."""

    place: Place
    value: int
    read: Place
    access: Access
    address: int
    buffer: str | None
    thread: tuple[int, int, int]
    block: tuple[int, int, int]
    identity: int


class ValueReturns:
    """Watches a launch that swaps; only global memory, where blocks meet."""

    def __init__(self, findings: Findings) -> None:
        self.findings = findings
        self._seen: deque[_Seen] = deque(maxlen=_REMEMBERED)
        self._history: dict[Place, list[int]] = {}
        self._swaps: list[_Swap] = []
        self._studied: dict[int, int] = {}
        self._writers: dict[int, np.ndarray] = {}
        self._lines: dict[Place, int | None] = {}

    def start(self, batch: Batch) -> None:
        self.batch = batch
        self._seen.clear()

    def read(self, access: Access, g: Lanes, part: Part, values: V) -> None:
        """Lanes have read a place."""
        if isinstance(part.storage, Buffer) and access.bytes == 4:
            self._seen.append(_Seen(access, g, part, values))

    def written(self, access: Access, g: Lanes, part: Part) -> None:
        """Lanes have changed a place, or may have."""
        if not isinstance(part.storage, Buffer):
            return
        who = self._identities(_slots(g, part))
        units = -(-access.bytes // 4)
        index = np.broadcast_to(np.asarray(part.index), len(who)) * access.bytes // 4
        writers = self._writers_of(part.storage)
        for unit in range(units):
            before = writers[index + unit]
            writers[index + unit] = np.where((before == 0) | (before == who), who, -1)
        for at in index[:1]:
            self._lines[id(part.storage), int(at)] = access.line

    def updated(self, access: Access, g: Lanes, part: Part, operation: str, old: V, b: V) -> None:  # noqa: PLR0917
        """Lanes have executed an atomic, in ascending order, and found `old`."""
        if not isinstance(part.storage, Buffer) or access.bytes != 4:
            return
        swapped = np.flatnonzero(np.asarray(old == b)) if operation == "cas" else np.zeros(0, np.int64)
        index = np.broadcast_to(np.asarray(part.index), len(old))
        for lane in swapped:
            self._study(access, g, part, int(lane), int(index[lane]), int(old[lane].view("u4")))
        now = part.storage.view(4)[index]
        for at in np.unique(index):
            history = self._history.setdefault((id(part.storage), int(at)), [])
            values = [int(v) for v in old[index == at].view("u4")] + [int(now[index == at][0])]
            for value in values:
                if len(history) < _HISTORY and (not history or history[-1] != value):
                    history.append(value)
        changed = np.ones(len(old), bool) if operation != "cas" else np.asarray(old == b)
        if operation in _KEEPS_WHERE_ZERO:
            changed &= np.asarray(np.broadcast_to(b, len(old)) != 0)
        if changed.any():
            where = np.arange(g.n) if part.where is None else part.where
            self.written(access, g, Part(part.storage, part.space, index[changed], where[changed]))
        if operation != "exch":
            self._seen.append(_Seen(access, g, part, old))

    def finish(self) -> None:
        """Report the swaps whose value went away and came back in this launch."""
        for swap in self._swaps:
            history = self._history.get(swap.place, [])
            writers = self._writers.get(swap.read[0])
            alone = writers is None or writers[swap.read[1]] in (0, swap.identity)
            if alone or history.count(swap.value) < 2 or self.findings.known("race", swap.access.line):
                continue
            other = self._lines.get(swap.read)
            line = swap.access.line
            message = (
                f"line {line}: thread {swap.thread} of block {swap.block} swaps a value of {swap.buffer} that went "
                f"away and came back in this launch, with what it made of memory that other threads change at line "
                f"{other} meanwhile (ABA)"
            )
            self.findings.add(
                Finding("race", message, line, swap.address, swap.buffer, swap.thread, swap.block, other)
            )

    def _study(self, access: Access, g: Lanes, part: Part, lane: int, index: int, value: int) -> None:  # noqa: PLR0917
        if self._studied.get(access.ordinal, 0) >= _STUDIED:
            return
        self._studied[access.ordinal] = self._studied.get(access.ordinal, 0) + 1
        slot = int(_slots(g, part)[lane])
        place = (id(part.storage), index)
        identity = int(self._identities(np.array([slot]))[0])
        reads: list[Place] = []
        for seen in reversed(self._seen):
            at = np.flatnonzero(_slots(seen.lanes, seen.part) == slot)
            if not len(at):
                continue
            index_there = np.broadcast_to(np.asarray(seen.part.index), len(_slots(seen.lanes, seen.part)))
            where = (id(seen.part.storage), int(index_there[at[0]]))
            if where != place:
                reads.append(where)
                continue
            if int(np.broadcast_to(seen.values, len(index_there))[at[0]].view("u4")) == value:
                break
            return
        else:
            return
        assert isinstance(part.storage, Buffer)  # noqa: S101 - the caller looked
        address = part.storage.base + 4 * index
        thread, block = self.batch.thread_of(slot), self.batch.block_of(slot)
        for read in reads:
            self._swaps.append(
                _Swap(place, value, read, access, address, part.storage.name, thread, block, identity)
            )

    def _writers_of(self, storage: Buffer) -> np.ndarray:
        if id(storage) not in self._writers:
            self._writers[id(storage)] = np.zeros(-(-storage.data.size // 4), np.int64)
        return self._writers[id(storage)]

    def _identities(self, slots: np.ndarray) -> np.ndarray:
        """Numbers of threads in the launch, from 1."""
        blocks = self.batch.blocks[slots // self.batch.slots_per_block]
        found: np.ndarray = blocks * self.batch.slots_per_block + slots % self.batch.slots_per_block + 1
        return found


_KEEPS_WHERE_ZERO = frozenset(("add", "or", "xor"))


def _slots(g: Lanes, part: Part) -> np.ndarray:
    return g.slots if part.where is None else g.slots[part.where]
