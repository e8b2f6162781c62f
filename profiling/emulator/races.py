"""Data races within a block, checked once per barrier interval through maps of who touched each granule of memory last.

Two accesses race when nothing orders them: no barrier of the block and, inside a warp, no `bar.warp.sync`. Where a
barrier of some of the warps stands between them, the warps' clocks decide (`partial_barriers`). What blocks do to each
other is `block_races`' business.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from mctskernel.profiling.emulator.arithmetic import V
from mctskernel.profiling.emulator.block_races import VERBS, BlockRaces, Entry, expanded
from mctskernel.profiling.emulator.codegen import Access
from mctskernel.profiling.emulator.findings import Finding, Findings
from mctskernel.profiling.emulator.lanes import WARP, Batch, Lanes
from mctskernel.profiling.emulator.memory import Buffer, Part, Storage

_ORDER = {"write": 0, "async": 0, "atomic": 1, "read": 2}
_THREAD_BITS = 32
_ASYNC = 1 << 31  # set in the actor of a copy that its thread hasn't waited for
_PAIRED = 256  # entries of one interval that are compared pair by pair; with more of them, a partial barrier ends it


@dataclass
class _Owners:
    """By granule: who wrote, and who updated atomically, in which interval."""

    written: np.ndarray
    updated: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class _Claim:
    """One of the entries of an interval, the granules that it touches, and its mark on each of them."""

    entry: Entry
    entries: Sequence[Entry]
    index: np.ndarray
    mine: np.ndarray
    by_warp: bool = False


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
                entries, self._entries = _divided(entries, inside)
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
        self.warp_barrier(lanes)
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
                entries += [replace(e, part=p, unit=None, epoch=0) for p in new]
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
        copy = self._claim(copied, [copied])
        owners.written[copy.index] = copy.mine
        for entry in self._entries[at + 1 :]:
            if entry.kind == "read" and entry.part.storage is part.storage:
                claim = self._claim(entry, [copied])
                early = owners.written[claim.index] == claim.mine
                if early.any():
                    self._report(claim, owners.written, int(np.argmax(early)))
        del self._entries[at]
        self.log("write", access, g, part)

    def _owners_of(self, storage: Storage) -> _Owners:
        if id(storage) not in self._owners:
            size = -(-storage.data.size // self.granule)
            self._owners[id(storage)] = _Owners(np.zeros(size, np.int64), np.zeros(size, np.int64))
        return self._owners[id(storage)]

    def _claim(
        self, entry: Entry, entries: Sequence[Entry], *, by_warp: bool = False, bits: int = 0
    ) -> _Claim:
        """An entry's claim. A mark is the interval's stamp, `bits`, and the slot or warp that acts, from 1."""
        actors = (entry.slots // WARP if by_warp else entry.slots) + 1 + bits
        factor = entry.access.bytes // self.granule
        marks = actors + (self._stamp << _THREAD_BITS)
        mine = np.repeat(marks, factor) if factor > 1 else marks
        return _Claim(entry, entries, expanded(entry, self.granule), mine, by_warp)

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
            parts = [_chosen(e, np.asarray(each == epoch)) for e, each in zip(entries, epochs, strict=True)]
            self._interval([e for e in parts if e is not None], by_warp=False)

    def _pairwise(self, entries: list[Entry]) -> None:
        """Compare the entries of an interval in which some warps met without the others."""
        owners, low = self._owners_of(entries[0].part.storage), (1 << _THREAD_BITS) - 1
        claims = [self._claim(each, [each]) for each in entries]
        places = [(each.index, each.mine & low) for each in claims]
        # Only those that touch the same part of a block's memory are compared.
        period = self.batch.shared_stride // self.granule if entries[0].part.space == "shared" else low
        begins = np.array([(index % period).min(initial=low) for index, _ in places])
        ends = np.array([(index % period).max(initial=-1) for index, _ in places])
        for at, early in enumerate(entries):
            if early.kind in ("write", "async"):
                self._interval([early], by_warp=False)
            self._stamp += 1
            stamp = self._stamp << _THREAD_BITS
            owners.written[places[at][0]] = places[at][1] | stamp
            near = np.flatnonzero((begins[at + 1 :] <= ends[at]) & (ends[at + 1 :] >= begins[at])) + at + 1
            for late, (index, mine) in ((entries[number], places[number]) for number in near):
                if early.kind == late.kind != "write":
                    continue
                found = owners.written[index] ^ stamp
                touched = np.flatnonzero((found <= low) & (found != mine))
                if len(touched):
                    lanes = touched // max(1, late.access.bytes // self.granule)
                    racing = touched[self._unordered(early, found[touched] - 1, late, lanes)]
                    if len(racing) and not self.findings.known("race", late.access.line):
                        self._report(self._claim(late, [early]), owners.written, int(racing[0]))

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
        ordered = sorted(entries, key=lambda e: _ORDER[e.kind])
        updates = False
        for entry in ordered:
            bits = _ASYNC if entry.kind == "async" else 0
            claim = self._claim(entry, entries, by_warp=by_warp, bits=bits)
            index, mine = claim.index, claim.mine
            self._compare(claim, owners.written)
            if entry.kind in ("write", "async"):
                owners.written[index] = mine
                self._same_instruction(claim, owners.written)
            elif entry.kind == "atomic" and ".cas." not in entry.access.opcode:
                before = owners.updated[index]
                shared = (before >> _THREAD_BITS == self._stamp) & (before != mine)
                owners.updated[index] = np.where(shared, mine | (_ASYNC - 1), mine)
                crowd = owners.updated[index] != mine
                owners.updated[index[crowd]] = mine[crowd] | (_ASYNC - 1)
                updates = True
            elif updates:
                self._compare(claim, owners.updated)

    def _compare(self, claim: _Claim, owner: np.ndarray) -> None:
        difference = owner[claim.index] ^ claim.mine
        conflict = (difference - 1).view(np.uint64) < np.uint64((1 << _THREAD_BITS) - 1)
        if conflict.any():
            self._conflict(claim, owner, conflict)

    def _same_instruction(self, claim: _Claim, owner: np.ndarray) -> None:
        """Lanes of one instruction that write different values to one address."""
        entry, index = claim.entry, claim.index
        conflict = owner[index] != claim.mine
        if not conflict.any() or entry.unit is None or entry.unit.ndim == 0:
            return
        factor = entry.access.bytes // self.granule
        lane = np.repeat(np.arange(len(entry.slots)), factor)
        winner = np.full(len(owner), -1)
        winner[index] = lane
        values = np.ascontiguousarray(entry.unit).view("u1").reshape(len(entry.slots), factor, -1)
        piece = np.tile(np.arange(factor), len(entry.slots))
        conflict &= (values[lane, piece] != values[winner[index], piece]).any(axis=1)
        if conflict.any():
            self._conflict(claim, owner, conflict)

    def _conflict(self, claim: _Claim, owner: np.ndarray, conflict: np.ndarray) -> None:
        entry = claim.entry
        if isinstance(entry.part.storage, Buffer):  # accesses of other blocks are checked by `_between`
            scale = self.batch.warps_per_block if claim.by_warp else self.batch.slots_per_block
            low = (1 << 31) - 1
            conflict &= ((owner[claim.index] & low) - 1) // scale == ((claim.mine & low) - 1) // scale
        if conflict.any() and not self.findings.known("race", entry.access.line):
            self._report(claim, owner, int(np.argmax(conflict)))

    def _report(self, claim: _Claim, owner: np.ndarray, at: int) -> None:
        entry, granule = claim.entry, int(claim.index[at])
        slot = int(entry.slots[at // max(1, entry.access.bytes // self.granule)])
        mark = int(owner[granule]) & ((1 << _THREAD_BITS) - 1)
        pending = bool(mark & _ASYNC) or entry.kind == "async"
        other = self._partner(claim, granule, (mark & (_ASYNC - 1)) - 1)
        place = self._place(entry.part.storage, granule)
        thread, block = self.batch.thread_of(slot), self.batch.block_of(slot)
        text = f"line {entry.access.line}: thread {thread} of block {block} {VERBS[entry.kind]} {place}"
        if other is not None:
            who = self.batch.thread_of(other[1])
            text += f", which thread {who} {VERBS[other[0].kind]} at line {other[0].access.line}"
        waits = pending or (other is not None and other[1] == slot)
        text += f", and {'no wait for the copy' if waits else 'no barrier'} is between them"
        other_line = None if other is None else other[0].access.line
        self.findings.add(Finding("race", text, entry.access.line, other_line))

    def _partner(self, claim: _Claim, granule: int, actor: int) -> tuple[Entry, int] | None:
        """The access that a mark in the owner map came from."""
        for other in reversed(claim.entries):
            if (
                (other.kind == "read" and len(claim.entries) > 1)
                or other.part.storage is not claim.entry.part.storage
                or other.part.granules is None
            ):
                continue
            hits = np.flatnonzero(other.part.granules == granule)
            slots = other.slots[hits // max(1, other.access.bytes // self.granule)]
            match = slots[(slots // WARP if claim.by_warp else slots) == actor]
            if len(match):
                return other, int(match[0])
        return None

    def _place(self, storage: Storage, granule: int) -> str:
        offset = granule * self.granule
        if isinstance(storage, Buffer):
            return f"byte {offset} of {storage.name}"
        return f"byte {offset % max(self.batch.shared_stride, 1)} of shared memory"


def _chosen(entry: Entry, lanes: np.ndarray) -> Entry | None:
    """The entry of some of its lanes; None for none."""
    if lanes.all():
        return entry
    if not lanes.any():
        return None
    part = entry.part.subset(entry.lanes, lanes)
    unit = entry.unit if entry.unit is None or entry.unit.ndim == 0 else entry.unit[lanes]
    epoch = entry.epoch if isinstance(entry.epoch, int) else entry.epoch[lanes]
    return replace(entry, part=part, unit=unit, epoch=epoch)


def _divided(entries: list[Entry], inside: np.ndarray) -> tuple[list[Entry], list[Entry]]:
    """Entries of the batch's blocks that are inside, and the rest."""
    within: list[Entry] = []
    rest: list[Entry] = []
    for entry in entries:
        mask = inside[entry.slots // entry.lanes.batch.slots_per_block]
        for group, part in ((within, _chosen(entry, mask)), (rest, _chosen(entry, ~mask))):
            if part is not None:
                group.append(part)
    return within, rest


_next_era = partial(next, itertools.count())


@dataclass(frozen=True)
class Arrival:
    """Warps that arrived at a barrier without waiting, with their clocks then.

    `era` is of the clocks by block: those of an earlier one, before a barrier of the whole block, mean nothing now.
    """

    warps: np.ndarray
    known: np.ndarray
    era: np.ndarray


class WarpClocks:
    """The clocks of a batch's warps since the last barrier of their whole block."""

    def __init__(self, batch: Batch) -> None:
        self._warps = batch.warps_per_block
        total = batch.count * self._warps
        self.known = np.zeros((total, self._warps), np.int32)
        self._eras = np.zeros(batch.count, np.int64)
        self._eras[:] = _next_era()
        self._restart(np.arange(total))

    def arrive(self, members: Lanes) -> Arrival:
        """Some warps have arrived; what they do from now on is not what the others will have waited for."""
        warps = members.warps[members.warp_starts]
        blocks = warps // self._warps
        arrival = Arrival(warps, self.known[warps], self._eras[blocks])
        self.known = self.known.copy()
        self.known[warps, warps % self._warps] += 1
        return arrival

    def barrier(self, members: Lanes, arrivals: Sequence[Arrival] = ()) -> None:
        """Some warps of some blocks have met, and others had arrived before."""
        warps = members.warps[members.warp_starts]
        known = self.known.copy()
        for block in np.unique(warps // self._warps):
            met = warps[warps // self._warps == block]
            arrived = [
                each.known[(each.warps // self._warps == block) & (each.era == self._eras[block])]
                for each in arrivals
            ]
            known[met] = np.concatenate([known[met], *arrived]).max(axis=0)
            known[met, met % self._warps] += 1
        self.known = known

    def whole(self, blocks: np.ndarray) -> None:
        """All warps of these blocks of the batch have met, which ends what is remembered of them."""
        self._eras[blocks] = _next_era()
        self.known = self.known.copy()
        self._restart((blocks[:, None] * self._warps + np.arange(self._warps)).reshape(-1))

    def _restart(self, warps: np.ndarray) -> None:
        self.known[warps] = 0
        self.known[warps, warps % self._warps] = 1

    def unordered(
        self, early: np.ndarray, slots: np.ndarray, late: np.ndarray, others: np.ndarray
    ) -> np.ndarray:
        """Whether nothing orders what `slots` did when the clocks were `early` before what `others` did when they were
        `late`, warp by warp of one block each."""
        a, b = slots // WARP, others // WARP
        column = a % self._warps
        found: np.ndarray = (a != b) & (late[b, column] < early[a, column])
        return found
