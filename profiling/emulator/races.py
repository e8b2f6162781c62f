"""Data races, checked once per barrier interval through maps of who touched each granule of memory last.

Within a block two accesses race when nothing orders them: no barrier of the block and, inside a warp, no
`bar.warp.sync`. Between blocks nothing orders plain accesses of one launch but a fence and an atomic on both sides,
which is recognised by block, not by address: it may hide a race of such kernels and never invents one. A barrier of
part of a block ends the interval for the whole block, which may hide races too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mctskernel.profiling.emulator.arithmetic import V
from mctskernel.profiling.emulator.codegen import Access
from mctskernel.profiling.emulator.findings import Finding, Findings
from mctskernel.profiling.emulator.lanes import Batch, Lanes
from mctskernel.profiling.emulator.memory import Buffer, Storage
from mctskernel.profiling.emulator.resolve import Part

_THREAD_BITS = 32
_ASYNC = 1 << 31  # set in the actor of a copy that its thread hasn't waited for
_MANY = np.int32(-1)


@dataclass(slots=True, eq=False)
class Entry:
    """One execution of an access: `kind` is read, write, atomic (also strong loads and stores) or async."""

    kind: str
    access: Access
    lanes: Lanes
    part: Part
    unit: V | None
    epoch: np.ndarray | int

    @property
    def slots(self) -> np.ndarray:
        return self.lanes.slots if self.part.where is None else self.lanes.slots[self.part.where]


@dataclass
class _Owners:
    """By granule: who wrote, and who updated atomically, in which interval."""

    written: np.ndarray
    updated: np.ndarray


@dataclass
class _Blocks:
    """By granule of a buffer: which block (number + 1, _MANY for several) wrote, read or updated it in this launch."""

    written: np.ndarray
    read: np.ndarray
    updated: np.ndarray


class RaceDetector:
    """Logs accesses and looks for races when a barrier interval ends."""

    def __init__(self, findings: Findings, granule: int, blocks: int) -> None:
        self.findings = findings
        self.granule = granule
        self._blocks: dict[int, _Blocks] = {}
        self._stamp = 0
        self._order = _Order(blocks)

    def start(self, batch: Batch, shared: Storage) -> None:
        self.batch = batch
        self.shared = shared
        self._entries: list[Entry] = []
        self._owners: dict[int, _Owners] = {}
        self._epochs: np.ndarray | None = None

    def log(self, kind: str, access: Access, g: Lanes, part: Part, unit: V | None = None) -> None:
        if part.space == "local" or (isinstance(part.storage, Buffer) and not part.storage.writable):
            return
        epoch = (
            0
            if self._epochs is None
            else self._epochs[g.warps if part.where is None else g.warps[part.where]]
        )
        self._entries.append(Entry("atomic" if kind == "strong" else kind, access, g, part, unit, epoch))

    def warp_barrier(self, g: Lanes) -> None:
        """Order the accesses of the warps' lanes before and after."""
        if self._epochs is None:
            self._epochs = np.zeros(self.batch.count * self.batch.warps_per_block, np.int64)
        self._epochs[g.warps[g.warp_starts]] += 1

    def fence(self, g: Lanes) -> None:
        self._order.fence(self._launch_blocks(g))

    def released(self, g: Lanes, part: Part) -> None:
        """An atomic on global memory after a fence publishes what the block did; any atomic sees what was published."""
        if part.space == "global":
            self._order.atomic(self._launch_blocks(g))

    def _launch_blocks(self, g: Lanes) -> np.ndarray:
        blocks: np.ndarray = g.cached("launch blocks", lambda: self.batch.blocks[np.unique(g.block_index)])
        return blocks

    def barrier(self, lanes: Lanes | None) -> None:
        """Close the interval of the batch (for None) or of the blocks that the lanes belong to."""
        entries, self._entries = self._entries, []
        if lanes is not None:
            inside = np.zeros(self.batch.count, bool)
            inside[lanes.block_index] = True
            if not inside.all():
                entries, self._entries = _divided(entries, inside)
        by_storage: dict[int, list[Entry]] = {}
        for entry in entries:
            by_storage.setdefault(id(entry.part.storage), []).append(entry)
        for group in by_storage.values():
            if any(e.kind != "read" for e in group):
                self._within(group)
            if isinstance(group[0].part.storage, Buffer):
                self._between(group)

    def split(self, old: Part, new: Sequence[Part]) -> None:
        """A pending copy is waited for by some of its lanes only."""
        entries: list[Entry] = []
        for e in self._entries:
            if e.part is old:
                entries += [Entry(e.kind, e.access, e.lanes, p, None, 0) for p in new]
            else:
                entries.append(e)
        self._entries = entries

    def completed(self, access: Access, g: Lanes, part: Part) -> None:
        """A copy has been waited for: a read of it by its own thread until now was too early."""
        at = next((i for i, e in enumerate(self._entries) if e.part is part), None)
        if at is None:
            return
        copied = self._entries[at]
        owners = self._owners_of(part.storage)
        self._stamp += 1
        index, actor = self._expanded(copied, copied.slots + 1)
        owners.written[index] = actor
        for entry in self._entries[at + 1 :]:
            if entry.kind == "read" and entry.part.storage is part.storage:
                index, mine = self._expanded(entry, entry.slots + 1)
                early = owners.written[index] == mine
                if early.any():
                    self._report(entry, [copied], index, owners.written, int(np.argmax(early)))
        del self._entries[at]
        self.log("write", access, g, part)

    def _owners_of(self, storage: Storage) -> _Owners:
        if id(storage) not in self._owners:
            size = -(-storage.data.size // self.granule)
            self._owners[id(storage)] = _Owners(np.zeros(size, np.int64), np.zeros(size, np.int64))
        return self._owners[id(storage)]

    def _expanded(self, entry: Entry, actors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Granules that an entry touches and, for each, the actor's mark in this interval."""
        part, factor = entry.part, entry.access.bytes // self.granule
        if part.granules is None:
            index = np.broadcast_to(np.asarray(part.index), len(actors))
            part.granules = (index[:, None] * factor + np.arange(factor)).reshape(-1) if factor > 1 else index
        marks = actors + (self._stamp << _THREAD_BITS)
        return part.granules, np.repeat(marks, factor) if factor > 1 else marks

    def _within(self, entries: list[Entry]) -> None:
        if all(isinstance(e.epoch, int) for e in entries):
            self._interval(entries, by_warp=False)
            return
        self._interval(entries, by_warp=True)
        epochs = [np.broadcast_to(e.epoch, len(e.slots)) for e in entries]
        for epoch in np.unique(np.concatenate(epochs)):
            chosen = [_chosen(e, np.asarray(each == epoch)) for e, each in zip(entries, epochs, strict=True)]
            self._interval([e for e in chosen if e is not None], by_warp=False)

    def _interval(self, entries: list[Entry], *, by_warp: bool) -> None:
        if not entries:
            return
        owners = self._owners_of(entries[0].part.storage)
        self._stamp += 1
        ordered = sorted(entries, key=lambda e: _ORDER[e.kind])
        updates = False
        for entry in ordered:
            slots = entry.slots
            actors = slots // 32 + 1 if by_warp else slots + 1
            if entry.kind == "async":
                actors = actors + _ASYNC
            index, mine = self._expanded(entry, actors)
            self._compare(entry, entries, index, mine, owners.written, by_warp=by_warp)
            if entry.kind in ("write", "async"):
                owners.written[index] = mine
                self._same_instruction(entry, entries, index, mine, owners.written, by_warp=by_warp)
            elif entry.kind == "atomic":
                before = owners.updated[index]
                shared = (before >> _THREAD_BITS == self._stamp) & (before != mine)
                owners.updated[index] = np.where(shared, mine | (_ASYNC - 1), mine)
                crowd = owners.updated[index] != mine
                owners.updated[index[crowd]] = mine[crowd] | (_ASYNC - 1)
                updates = True
            elif updates:
                self._compare(entry, entries, index, mine, owners.updated, by_warp=by_warp)

    def _compare(
        self,
        entry: Entry,
        entries: list[Entry],
        index: np.ndarray,
        mine: np.ndarray,
        owner: np.ndarray,
        *,
        by_warp: bool,
    ) -> None:
        difference = owner[index] ^ mine
        conflict = (difference - 1).view(np.uint64) < np.uint64((1 << _THREAD_BITS) - 1)
        if conflict.any():
            self._conflict(entry, entries, index, mine, owner, conflict, by_warp=by_warp)

    def _same_instruction(
        self,
        entry: Entry,
        entries: list[Entry],
        index: np.ndarray,
        mine: np.ndarray,
        owner: np.ndarray,
        *,
        by_warp: bool,
    ) -> None:
        """Lanes of one instruction that write different values to one address."""
        conflict = owner[index] != mine
        if not conflict.any() or entry.unit is None or entry.unit.ndim == 0:
            return
        factor = entry.access.bytes // self.granule
        winner = np.full(len(owner), -1)
        winner[index] = np.repeat(np.arange(len(entry.slots)), factor)
        values = np.ascontiguousarray(entry.unit).view("u1").reshape(len(entry.slots), factor, -1)
        lane = np.repeat(np.arange(len(entry.slots)), factor)
        piece = np.tile(np.arange(factor), len(entry.slots))
        different = (values[lane, piece] != values[winner[index], piece]).any(axis=1)
        conflict &= different
        if conflict.any():
            self._conflict(entry, entries, index, mine, owner, conflict, by_warp=by_warp)

    def _conflict(  # noqa: PLR0917
        self,
        entry: Entry,
        entries: list[Entry],
        index: np.ndarray,
        mine: np.ndarray,
        owner: np.ndarray,
        conflict: np.ndarray,
        *,
        by_warp: bool,
    ) -> None:
        if isinstance(entry.part.storage, Buffer):  # other blocks' accesses are the business of `_between`
            scale = self.batch.warps_per_block if by_warp else self.batch.slots_per_block
            low = (1 << 31) - 1
            conflict &= ((owner[index] & low) - 1) // scale == ((mine & low) - 1) // scale
        if conflict.any() and not self.findings.known("race", entry.access.line):
            self._report(entry, entries, index, owner, int(np.argmax(conflict)), by_warp=by_warp)

    def _report(
        self,
        entry: Entry,
        entries: Sequence[Entry],
        index: np.ndarray,
        owner: np.ndarray,
        at: int,
        *,
        by_warp: bool = False,
    ) -> None:
        granule = int(index[at])
        slot = int(entry.slots[at // max(1, entry.access.bytes // self.granule)])
        mark = int(owner[granule]) & ((1 << _THREAD_BITS) - 1)
        pending = bool(mark & _ASYNC) or entry.kind == "async"
        other = self._partner(entries, entry, granule, (mark & (_ASYNC - 1)) - 1, by_warp=by_warp)
        place, address = self._place(entry.part.storage, granule)
        thread, block = self.batch.thread_of(slot), self.batch.block_of(slot)
        text = f"line {entry.access.line}: thread {thread} of block {block} {_VERBS[entry.kind]} {place}"
        if other is not None:
            who = self.batch.thread_of(other[1])
            text += f", which thread {who} {_VERBS[other[0].kind]} at line {other[0].access.line}"
        cause = (
            "no wait for the copy" if pending or (other is not None and other[1] == slot) else "no barrier"
        )
        name = entry.part.storage.name if isinstance(entry.part.storage, Buffer) else "shared"
        self.findings.add(
            Finding(
                "race",
                f"{text}, and {cause} is between them",
                entry.access.line,
                address,
                name,
                thread,
                block,
            )
        )

    def _partner(
        self, entries: Sequence[Entry], entry: Entry, granule: int, actor: int, *, by_warp: bool
    ) -> tuple[Entry, int] | None:
        """The access that a mark in the owner map came from."""
        for other in reversed(entries):
            if (
                other.kind == "read"
                or other.part.storage is not entry.part.storage
                or other.part.granules is None
            ):
                continue
            hits = np.flatnonzero(other.part.granules == granule)
            slots = other.slots[hits // max(1, other.access.bytes // self.granule)]
            match = slots[(slots // 32 if by_warp else slots) == actor]
            if len(match):
                return other, int(match[0])
        return None

    def _place(self, storage: Storage, granule: int) -> tuple[str, int]:
        offset = granule * self.granule
        if isinstance(storage, Buffer):
            return f"byte {offset} of {storage.name}", storage.base + offset
        offset %= max(self.batch.shared_stride, 1)
        return f"byte {offset} of shared memory", offset

    def _between(self, entries: list[Entry]) -> None:
        """Races between blocks, over the whole launch."""
        storage = entries[0].part.storage
        if id(storage) not in self._blocks:
            size = -(-storage.data.size // self.granule)
            self._blocks[id(storage)] = _Blocks(*(np.zeros(size, np.int32) for _ in range(3)))
        maps = self._blocks[id(storage)]
        against = {
            "write": (maps.written, maps.read, maps.updated),
            "atomic": (maps.written, maps.read),
            "read": (maps.written, maps.updated),
        }
        target = {"write": maps.written, "atomic": maps.updated, "read": maps.read}
        for entry in sorted(entries, key=lambda e: _ORDER[e.kind]):
            index, _ = self._expanded(entry, entry.slots + 1)
            block = (self.batch.blocks[entry.slots // self.batch.slots_per_block] + 1).astype(np.int32)
            mine = np.repeat(block, entry.access.bytes // self.granule)
            for owner in against[entry.kind]:
                found = owner[index]
                conflict = (found != 0) & (found != mine)
                if conflict.any():
                    self._foreign(entry, index, mine, found, conflict)
            own = target[entry.kind]
            before = own[index]
            own[index] = np.where((before == 0) | (before == mine), mine, _MANY)
            crowd = own[index] != mine
            if not crowd.any():
                continue
            if entry.kind == "write" and entry.unit is not None and entry.unit.ndim:
                self._foreign(entry, index, mine, own[index], crowd & (own[index] > 0))
            own[index[crowd]] = _MANY

    def _foreign(
        self, entry: Entry, index: np.ndarray, mine: np.ndarray, found: np.ndarray, conflict: np.ndarray
    ) -> None:
        conflict = conflict & ~self._order.ordered(found, mine)
        if not conflict.any() or self.findings.known("race", entry.access.line):
            return
        at = int(np.argmax(conflict))
        slot = int(entry.slots[at // max(1, entry.access.bytes // self.granule)])
        place, address = self._place(entry.part.storage, int(index[at]))
        thread, block = self.batch.thread_of(slot), self.batch.block_of(slot)
        number = int(found[at]) - 1
        x, y, _ = self.batch.geometry.grid
        other = f"block {(number % x, number // x % y, number // (x * y))}" if number >= 0 else "other blocks"
        message = (
            f"line {entry.access.line}: thread {thread} of block {block} {_VERBS[entry.kind]} {place}, which {other} "
            "also accessed in this launch; nothing orders blocks but atomics with fences"
        )
        name = entry.part.storage.name if isinstance(entry.part.storage, Buffer) else None
        self.findings.add(Finding("race", message, entry.access.line, address, name, thread, block))


_ORDER = {"write": 0, "async": 0, "atomic": 1, "read": 2}
_VERBS = {"write": "writes", "async": "copies to", "atomic": "updates", "read": "reads"}


@dataclass
class _Order:
    """Which blocks published their writes (fence, then atomic) and when each last looked (atomic)."""

    blocks: int
    clock: int = 0
    fenced: np.ndarray = field(init=False)
    published: np.ndarray = field(init=False)
    looked: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.fenced = np.zeros(self.blocks, bool)
        self.published = np.zeros(self.blocks, np.int64)
        self.looked = np.zeros(self.blocks, np.int64)

    def fence(self, blocks: np.ndarray) -> None:
        self.fenced[blocks] = True

    def atomic(self, blocks: np.ndarray) -> None:
        self.clock += 1
        first = blocks[self.fenced[blocks] & (self.published[blocks] == 0)]
        self.published[first] = self.clock
        self.looked[blocks] = self.clock

    def ordered(self, other: np.ndarray, mine: np.ndarray) -> np.ndarray:
        """Whether `other`'s accesses (block number + 1) come before those of `mine` or the other way round."""
        if not self.fenced.any():
            return np.zeros(len(mine), bool)
        known = other > 0
        a, b = np.where(known, other, mine) - 1, mine - 1
        before = (self.published[a] > 0) & (self.looked[b] >= self.published[a])
        after = (self.published[b] > 0) & (self.looked[a] >= self.published[b])
        found: np.ndarray = np.where(known, before | after, self.published[b] > 0)
        return found


def _chosen(entry: Entry, lanes: np.ndarray) -> Entry | None:
    if lanes.all():
        return entry
    if not lanes.any():
        return None
    where = np.arange(entry.lanes.n) if entry.part.where is None else entry.part.where
    index = np.broadcast_to(np.asarray(entry.part.index), len(where))[lanes]
    part = Part(entry.part.storage, entry.part.space, index, where[lanes])
    unit = entry.unit if entry.unit is None or entry.unit.ndim == 0 else entry.unit[lanes]
    epoch = entry.epoch if isinstance(entry.epoch, int) else entry.epoch[lanes]
    return Entry(entry.kind, entry.access, entry.lanes, part, unit, epoch)


def _divided(entries: list[Entry], inside: np.ndarray) -> tuple[list[Entry], list[Entry]]:
    """Entries of the blocks whose interval ends, and the rest."""
    ending: list[Entry] = []
    rest: list[Entry] = []
    for entry in entries:
        mask = inside[entry.slots // entry.lanes.batch.slots_per_block]
        for group, part in ((ending, _chosen(entry, mask)), (rest, _chosen(entry, ~mask))):
            if part is not None:
                group.append(part)
    return ending, rest
