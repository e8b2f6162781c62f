"""Data races within a block, checked once per barrier interval through maps of who touched each granule of memory last.

Two accesses race when nothing orders them: no barrier of the block and, inside a warp, no `bar.warp.sync`. Where a
barrier of some of the warps stands between them, the warps' clocks decide (`partial_barriers`). What blocks do to each
other is `block_races`' business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mctskernel.profiling.emulator.accesses import ORDER, VERBS, Entry, chosen, divided, expanded
from mctskernel.profiling.emulator.arithmetic import V
from mctskernel.profiling.emulator.block_races import BlockRaces
from mctskernel.profiling.emulator.codegen import Access
from mctskernel.profiling.emulator.findings import Finding, Findings
from mctskernel.profiling.emulator.lanes import WARP, Batch, Lanes
from mctskernel.profiling.emulator.memory import Buffer, Storage
from mctskernel.profiling.emulator.partial_barriers import Arrival, WarpClocks
from mctskernel.profiling.emulator.resolve import Part

_THREAD_BITS = 32
_ASYNC = 1 << 31  # set in the actor of a copy that its thread hasn't waited for
_PAIRED = 256  # entries of one interval that are compared pair by pair; with more of them, a partial barrier ends it


@dataclass
class _Owners:
    """By granule: who wrote, and who updated atomically, in which interval."""

    written: np.ndarray
    updated: np.ndarray


class RaceDetector:
    """Logs accesses and looks for races when a barrier interval ends."""

    def __init__(self, findings: Findings, granule: int, blocks: int) -> None:
        self.findings = findings
        self.granule = granule
        self._stamp = 0
        self._between = BlockRaces(findings, granule, blocks)

    def start(self, batch: Batch, shared: Storage) -> None:
        self.batch = batch
        self.shared = shared
        self._entries: list[Entry] = []
        self._owners: dict[int, _Owners] = {}
        self._epochs: np.ndarray | None = None
        self._clocks: WarpClocks | None = None

    def log(self, kind: str, access: Access, g: Lanes, part: Part, unit: V | None = None) -> None:
        if part.space == "local" or (isinstance(part.storage, Buffer) and not part.storage.writable):
            return
        epoch = (
            0
            if self._epochs is None
            else self._epochs[g.warps if part.where is None else g.warps[part.where]]
        )
        handovers = self._between.handovers
        order = None if self._clocks is None else self._clocks.known
        self._entries.append(
            Entry(kind, access, g, part, unit, epoch, handovers.clock, handovers.looked, order)
        )

    def warp_barrier(self, g: Lanes) -> None:
        """Order the accesses of the warps' lanes before and after."""
        if self._epochs is None:
            self._epochs = np.zeros(self.batch.count * self.batch.warps_per_block, np.int64)
        self._epochs[g.warps[g.warp_starts]] += 1

    def fence(self, g: Lanes) -> None:
        self._between.handovers.fence(self._launch_blocks(g))

    def released(self, g: Lanes, part: Part) -> None:
        """An atomic on global memory after a fence publishes what the block did; any atomic sees what was published."""
        if part.space == "global":
            self._between.handovers.atomic(self._launch_blocks(g))

    def _launch_blocks(self, g: Lanes) -> np.ndarray:
        blocks: np.ndarray = g.cached("launch blocks", lambda: self.batch.blocks[np.unique(g.block_index)])
        return blocks

    def barrier(self, lanes: Lanes | None) -> None:
        """Close the interval of the batch (for None) or of the blocks that the lanes belong to."""
        entries, self._entries = self._entries, []
        inside = np.ones(self.batch.count, bool)
        if lanes is not None:
            inside[:] = False
            inside[lanes.block_index] = True
            if not inside.all():
                entries, self._entries = divided(entries, inside)
        by_storage: dict[int, list[Entry]] = {}
        for entry in entries:
            by_storage.setdefault(id(entry.part.storage), []).append(entry)
        for group in by_storage.values():
            if any(e.kind != "read" for e in group):
                self._within(group)
            if isinstance(group[0].part.storage, Buffer):
                self._between.check(group, self.batch)
        if inside.all():
            self._clocks = None
        elif self._clocks is not None:
            self._clocks.whole(np.flatnonzero(inside))

    def partial_barrier(self, lanes: Lanes, arrivals: Sequence[Arrival] = ()) -> None:
        """Some warps of the lanes' blocks have met, and others haven't, but for those that had arrived."""
        if len(self._entries) > _PAIRED:
            self.barrier(lanes)
            return
        self._ordered_by_warps().barrier(lanes, arrivals)

    def arrived(self, lanes: Lanes) -> Arrival:
        """Warps have arrived at a barrier and go on: what they did before comes before what others do behind it."""
        return self._ordered_by_warps().arrive(lanes)

    def _ordered_by_warps(self) -> WarpClocks:
        if self._clocks is None:
            self._clocks = WarpClocks(self.batch)
            for entry in self._entries:
                entry.order = self._clocks.known
        return self._clocks

    def split(self, old: Part, new: Sequence[Part]) -> None:
        """A pending copy is waited for by some of its lanes only."""
        entries: list[Entry] = []
        for e in self._entries:
            if e.part is old:
                entries += [
                    Entry(e.kind, e.access, e.lanes, p, None, 0, e.time, e.looked, e.order) for p in new
                ]
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
        factor = entry.access.bytes // self.granule
        marks = actors + (self._stamp << _THREAD_BITS)
        return expanded(entry, self.granule), np.repeat(marks, factor) if factor > 1 else marks

    def _within(self, entries: list[Entry]) -> None:
        if self._clocks is not None:
            self._pairwise(entries)
            return
        if all(isinstance(e.epoch, int) for e in entries):
            self._interval(entries, by_warp=False)
            return
        self._interval(entries, by_warp=True)
        epochs = [np.broadcast_to(e.epoch, len(e.slots)) for e in entries]
        for epoch in np.unique(np.concatenate(epochs)):
            parts = [chosen(e, np.asarray(each == epoch)) for e, each in zip(entries, epochs, strict=True)]
            self._interval([e for e in parts if e is not None], by_warp=False)

    def _pairwise(self, entries: list[Entry]) -> None:
        """Compare the entries of an interval in which some warps met without the others."""
        owners = self._owners_of(entries[0].part.storage)
        for at, early in enumerate(entries):
            self._interval([early], by_warp=False)
            self._stamp += 1
            index, marks = self._expanded(early, early.slots + 1)
            owners.written[index] = marks
            for late in entries[at + 1 :]:
                if early.kind == late.kind != "write":
                    continue
                index, mine = self._expanded(late, late.slots + 1)
                found = owners.written[index]
                touched = np.flatnonzero((found >> _THREAD_BITS == self._stamp) & (found != mine))
                if len(touched):
                    lanes = touched // max(1, late.access.bytes // self.granule)
                    slots = (found[touched] & ((1 << _THREAD_BITS) - 1)) - 1
                    racing = touched[self._unordered(early, slots, late, lanes)]
                    if len(racing) and not self.findings.known("race", late.access.line):
                        self._report(late, [early], index, owners.written, int(racing[0]))

    def _unordered(self, early: Entry, slots: np.ndarray, late: Entry, lanes: np.ndarray) -> np.ndarray:
        """Whether an access by `slots` is unordered before a later one by the chosen lanes of `late`."""
        clocks, others = self._clocks, late.slots[lanes]
        assert clocks is not None and early.order is not None and late.order is not None  # noqa: S101
        before = np.zeros(self.batch.slots, np.int64)
        before[early.slots] = early.epoch
        after = np.broadcast_to(late.epoch, len(late.slots))[lanes]
        one_warp = (slots // WARP == others // WARP) & (before[slots] == after)
        one_block = slots // self.batch.slots_per_block == others // self.batch.slots_per_block
        apart = clocks.unordered(early.order, slots, late.order, others)
        pending = "async" in (early.kind, late.kind)
        found: np.ndarray = one_block & (one_warp | apart | pending)
        return found

    def _interval(self, entries: list[Entry], *, by_warp: bool) -> None:
        if not entries:
            return
        owners = self._owners_of(entries[0].part.storage)
        self._stamp += 1
        ordered = sorted(entries, key=lambda e: ORDER[e.kind])
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
            elif entry.kind == "atomic" and ".cas." not in entry.access.opcode:
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
        text = f"line {entry.access.line}: thread {thread} of block {block} {VERBS[entry.kind]} {place}"
        if other is not None:
            who = self.batch.thread_of(other[1])
            text += f", which thread {who} {VERBS[other[0].kind]} at line {other[0].access.line}"
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
                None if other is None else other[0].access.line,
            )
        )

    def _partner(
        self, entries: Sequence[Entry], entry: Entry, granule: int, actor: int, *, by_warp: bool
    ) -> tuple[Entry, int] | None:
        """The access that a mark in the owner map came from."""
        for other in reversed(entries):
            if (
                (other.kind == "read" and len(entries) > 1)
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
