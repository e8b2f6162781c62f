"""Races between the blocks of one launch, over maps of which blocks touched each granule of global memory last.

Nothing orders the accesses of two blocks but a hand-over: one block executes a fence after its access and an atomic
after that fence; the other executes an atomic later than that one and then its access. Atomics are recognised by
block, not by address: that may hide a race of such kernels and never invents one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mctskernel.profiling.emulator.arithmetic import V
from mctskernel.profiling.emulator.codegen import Access
from mctskernel.profiling.emulator.findings import Finding, Findings
from mctskernel.profiling.emulator.lanes import Batch, Lanes
from mctskernel.profiling.emulator.memory import Buffer, Part

VERBS = {"write": "writes", "async": "copies to", "atomic": "updates", "read": "reads"}
_NOBODY = np.zeros(0, np.int64)


@dataclass(slots=True, eq=False)
class Entry:
    """One execution of an access: `kind` is read, write, atomic (also strong loads and stores) or async.

    `epoch` counts the barriers of each lane's warp, `time` is the launch's clock of hand-overs, and `looked` when each
    block had last looked for one.
    """

    kind: str
    access: Access
    lanes: Lanes
    part: Part
    unit: V | None
    epoch: np.ndarray | int
    time: int = 0
    looked: np.ndarray = field(default_factory=lambda: _NOBODY)
    order: np.ndarray | None = None

    @property
    def slots(self) -> np.ndarray:
        return self.part.slots(self.lanes)


def expanded(entry: Entry, granule: int) -> np.ndarray:
    """The granules that an entry touches, those of a lane side by side."""
    part, factor = entry.part, entry.access.bytes // granule
    if part.granules is None:
        index = part.indices(entry.lanes)
        part.granules = (index[:, None] * factor + np.arange(factor)).reshape(-1) if factor > 1 else index
    return part.granules


@dataclass
class _Last:
    """By granule: the latest event, and the latest of a block other than that event's (0 for none)."""

    event: np.ndarray
    other: np.ndarray


_AGAINST = {"write": ("write", "read", "atomic"), "atomic": ("write", "read"), "read": ("write", "atomic")}


class BlockRaces:
    """What blocks did to global memory, and the hand-overs that order it."""

    def __init__(self, findings: Findings, granule: int, blocks: int) -> None:
        self.findings = findings
        self.granule = granule
        self.handovers = Handovers(blocks)
        self._maps: dict[int, dict[str, _Last]] = {}
        self._events = _Events()

    def check(self, entries: Sequence[Entry], batch: Batch) -> None:
        """Compare one buffer's entries with what other blocks have done so far, and remember them."""
        storage = entries[0].part.storage
        if id(storage) not in self._maps:
            size = -(-storage.data.size // self.granule)
            self._maps[id(storage)] = {
                kind: _Last(np.zeros(size, np.int32), np.zeros(size, np.int32)) for kind in _AGAINST
            }
        maps, self._batch = self._maps[id(storage)], batch
        for entry in entries:
            # Atomics of a block's scope order nothing between blocks.
            kind = "write" if entry.access.scope == "cta" else entry.kind
            index = expanded(entry, self.granule)
            first = self._events.add(entry, batch.blocks)
            of_lane = entry.slots // batch.slots_per_block
            mine = np.repeat(first + of_lane, entry.access.bytes // self.granule).astype(np.int32)
            for name in _AGAINST[kind]:
                self._compare(entry, index, mine, maps[name], chain=name == "atomic")
            own = maps[kind]
            before = own.event[index]
            own.other[index] = np.where(
                self._events.differ(before, mine) & (before != 0), before, own.other[index]
            )
            own.event[index] = mine
            crowd = self._events.differ(own.event[index], mine)
            if crowd.any():
                own.other[index[crowd]] = mine[crowd]
                if kind == "write":
                    self._conflict(entry, index, mine, own.event[index], crowd)

    def _compare(
        self, entry: Entry, index: np.ndarray, mine: np.ndarray, last: _Last, *, chain: bool
    ) -> None:
        """Whoever updates a place last (`chain`) comes after all who did so before."""
        found, other = last.event[index], last.other[index]
        foreign = (found != 0) & self._events.differ(found, mine)
        conflict = foreign if chain else foreign | (other != 0)
        if conflict.any():
            against = np.where(foreign, found, other)
            self._conflict(entry, index, mine, against, conflict & self._events.differ(against, mine))

    def _conflict(
        self, entry: Entry, index: np.ndarray, mine: np.ndarray, found: np.ndarray, conflict: np.ndarray
    ) -> None:
        if not conflict.any() or self.findings.known("race", entry.access.line):
            return
        pairs, first = np.unique(np.stack([found[conflict], mine[conflict]]), axis=1, return_index=True)
        places = np.flatnonzero(conflict)[first]
        for theirs, ours, at in zip(pairs[0], pairs[1], places, strict=True):
            if not self._excused(int(theirs), int(ours)):
                self._report(entry, int(index[at]), int(at), int(theirs))
                return

    def _excused(self, theirs: int, ours: int) -> bool:
        """Whether a hand-over orders two events, or both store the same constant, which no order changes."""
        a, b = self._events.entry(theirs), self._events.entry(ours)
        if a.constant is not None and a.constant == b.constant:
            return True
        if {a.kind, b.kind} == {"read", "atomic"} and (a.swaps or b.swaps):
            # What a swap compares may be read plainly before: if it was outdated, the swap fails.
            return True
        one, other = self._events.block(theirs), self._events.block(ours)
        return self.handovers.ordered(one, a.time, self._events.looked(ours)) or self.handovers.ordered(
            other, b.time, self._events.looked(theirs)
        )

    def _report(self, entry: Entry, granule: int, at: int, theirs: int) -> None:
        slot = int(entry.slots[at // max(1, entry.access.bytes // self.granule)])
        thread, block = self._batch.thread_of(slot), self._batch.block_of(slot)
        other = self._events.entry(theirs)
        x, y, _ = self._batch.geometry.grid
        number = self._events.block(theirs)
        who = (number % x, number // x % y, number // (x * y))
        storage = entry.part.storage
        assert isinstance(storage, Buffer)  # noqa: S101 - only global memory is shared by blocks
        scope = " with an atomic of block scope" if entry.access.scope == "cta" else ""
        message = (
            f"line {entry.access.line}: thread {thread} of block {block} {VERBS[entry.kind]} byte "
            f"{granule * self.granule} of {storage.name}{scope}, which block {who} {VERBS[other.kind]} at line "
            f"{other.line}; nothing orders blocks but atomics with fences"
        )
        self.findings.add(Finding("race", message, entry.access.line, other.line))


@dataclass(frozen=True, slots=True)
class _Remembered:
    """What events keep of their entry."""

    kind: str
    line: int | None
    constant: bytes | None
    time: int
    swaps: bool


class _Events:
    """Numbers events from 1: an entry's events are consecutive, one for each block of its batch."""

    def __init__(self) -> None:
        self._blocks = np.full(1024, -1, np.int64)
        self._looked = np.zeros(1024, np.int64)
        self._starts: list[int] = []
        self._entries: list[_Remembered] = []
        self._count = 1

    def add(self, entry: Entry, blocks: np.ndarray) -> int:
        """Events of an entry for each of the batch's blocks; the number of the first."""
        first = self._count
        self._count += len(blocks)
        if self._count > len(self._blocks):
            grown = np.full(max(2 * len(self._blocks), self._count), -1, np.int64)
            grown[:first] = self._blocks[:first]
            self._blocks = grown
            self._looked = np.r_[self._looked, np.zeros(len(grown) - len(self._looked), np.int64)]
        self._blocks[first : self._count] = blocks
        self._looked[first : self._count] = entry.looked[blocks]
        self._starts.append(first)
        constant = entry.unit.tobytes() if entry.unit is not None and entry.unit.ndim == 0 else None
        self._entries.append(
            _Remembered(entry.kind, entry.access.line, constant, entry.time, ".cas." in entry.access.opcode)
        )
        return first

    def differ(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Whether events are of different blocks."""
        different: np.ndarray = self._blocks[a] != self._blocks[b]
        return different

    def block(self, event: int) -> int:
        return int(self._blocks[event])

    def looked(self, event: int) -> int:
        """When the block had last executed an atomic."""
        return int(self._looked[event])

    def entry(self, event: int) -> _Remembered:
        return self._entries[int(np.searchsorted(self._starts, event, "right")) - 1]


class Handovers:
    """When blocks executed fences and atomics, on a clock of those of the launch."""

    def __init__(self, blocks: int) -> None:
        self.clock = 0
        self.looked = np.zeros(blocks, np.int64)
        self._fenced = np.full(blocks, -1, np.int64)
        self._published: dict[int, list[tuple[int, int]]] = {}

    def fence(self, blocks: np.ndarray) -> None:
        """The blocks made visible what they had done."""
        self.clock += 1
        self._fenced[blocks] = self.clock

    def atomic(self, blocks: np.ndarray) -> None:
        """The blocks published what they had fenced, and saw what others had published."""
        if self._fenced.max() < 0:
            return
        self.clock += 1
        for block in blocks[self._fenced[blocks] > 0]:
            published = self._published.setdefault(int(block), [])
            fenced = int(self._fenced[block])
            if not published or published[-1][0] < fenced:
                published.append((fenced, self.clock))
        # A copy, since entries hold on to the state of their time.
        self.looked = self.looked.copy()
        self.looked[blocks] = self.clock

    def ordered(self, one: int, time: int, looked: int) -> bool:
        """Whether what block `one` did at a time was published before a block last `looked`."""
        # The clock ticks at fences: what was done at a time comes before those that tick later.
        published = next((at for fenced, at in self._published.get(one, ()) if fenced > time), None)
        return published is not None and looked >= published
