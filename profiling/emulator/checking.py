"""The memory of an execution that checks everything: bounds, alignment, initialisation, races, pending copies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mctskernel.profiling.emulator.arithmetic import V
from mctskernel.profiling.emulator.atomics import apply_atomic
from mctskernel.profiling.emulator.barrier_reductions import BarrierReductions
from mctskernel.profiling.emulator.codegen import Access
from mctskernel.profiling.emulator.control_flow import Block
from mctskernel.profiling.emulator.findings import Finding, Findings, Kind
from mctskernel.profiling.emulator.lanes import WARP, Batch, Lanes
from mctskernel.profiling.emulator.launch import Launch
from mctskernel.profiling.emulator.memory import Buffer, GlobalMemory
from mctskernel.profiling.emulator.partial_barriers import Arrival
from mctskernel.profiling.emulator.races import RaceDetector
from mctskernel.profiling.emulator.resolve import Part, Resolver
from mctskernel.profiling.emulator.tallies import Tallies
from mctskernel.profiling.emulator.trail import Trail
from mctskernel.profiling.emulator.turns import Turns
from mctskernel.profiling.emulator.value_returns import ValueReturns
from mctskernel.profiling.emulator.warp import lane_bits, per_lane, rows

_FULL_MASK = np.uint32(0xFFFFFFFF)
_VERBS = {"load": "reads", "store": "writes", "atomic": "updates", "reduction": "updates", "copy": "copies"}


class CheckedMemory:
    """The memory port of `execute`."""

    def __init__(
        self,
        launch: Launch,
        memory: GlobalMemory,
        findings: Findings,
        granule: int,
        blocks: int,
        *,
        fences: bool = True,
        swaps: bool = False,
        tallies: Tallies | None = None,
        turns: Turns | None = None,
        trail: Trail | None = None,
    ) -> None:
        """`fences` and `swaps` say whether the kernel has any: without fences its volatile accesses publish nothing,
        and without compare-and-swap no value can be taken for another."""
        self.addresses = launch.addresses
        self.parameter = launch.parameter
        self.memory = memory
        self.findings = findings
        self.resolver = Resolver(memory, launch.shared, launch.local, self._complain)
        self.races = RaceDetector(findings, granule, blocks)
        self.fences = fences
        self.tallies = tallies
        self.returns = ValueReturns(findings) if swaps else None
        self.turns = turns
        self.trail = trail
        self.pending: list[PendingCopy] = []

    def start(self, batch: Batch) -> None:
        self.batch = batch
        self.resolver.start(batch)
        self.races.start(batch, self.resolver.shared)
        self.reductions = BarrierReductions(batch)
        if self.turns is not None:
            self.turns.start(int(batch.blocks[0]))
        if self.returns is not None:
            self.returns.start(batch)
        self.pending = []
        self.groups = np.zeros(batch.slots, np.int64)
        self.present = np.zeros(batch.slots, bool)
        self.present[batch.full.slots] = True

    def executed(self, block: Block, lanes: Lanes) -> None:
        """Counting is not this memory's business, but that of who asked for it."""
        if self.tallies is not None:
            self.tallies.executed(block, lanes)

    def load(self, access: Access, g: Lanes, address: V, mask: V | None) -> V | np.ndarray:
        """Values of the lanes' addresses: (lanes,) or, for vectors, (count, lanes); zero where inactive."""
        if self.tallies is not None:
            self.tallies.access(access, g, address, mask)
        if mask is not None and mask.ndim == 0:
            if not mask:
                zero = np.zeros(access.count, access.element)
                return zero[0] if access.count == 1 else zero
            mask = None
        parts = self.resolver.parts(access, g, address, mask)
        for part in parts:
            self._check_initialised(access, g, part)
            self.races.log(self._strength(access, part, "read"), access, g, part)
            if access.strong:
                self.races.released(g, part)
        if self.returns is not None:
            for part in parts:
                self.returns.read(access, g, part, _values(access, part))
        if len(parts) == 1 and parts[0].where is None:
            return _values(access, parts[0])
        result = np.zeros((access.count, g.n), access.element)
        for part in parts:
            values = _values(access, part)
            result[:, part.where if part.where is not None else slice(None)] = values
        return result[0] if access.count == 1 else result

    def store(self, access: Access, g: Lanes, address: V, mask: V | None, values: tuple[V, ...]) -> None:
        if self.tallies is not None:
            self.tallies.access(access, g, address, mask)
        if mask is not None and mask.ndim == 0:
            if not mask:
                return
            mask = None
        size = access.bytes
        for part in self.resolver.parts(access, g, address, mask):
            unit = _units(access, g, part, values)
            # Where every lane writes one address, any of them may win on a GPU; here it is the last.
            one = np.ndim(part.index) == 0 and unit.ndim > 0
            part.storage.view(size)[part.index] = unit[-1] if one else unit
            if part.storage.valid is not None:
                part.storage.valid_view(size)[part.index] = _ALL_SET[size]
            if self.trail is not None:
                self.trail.store(part.storage, part.index, size)
            self.races.log(self._strength(access, part, "write"), access, g, part, unit)
            if access.strong:
                self.races.released(g, part)
            if self.returns is not None:
                self.returns.written(access, g, part)

    def atomic(  # noqa: PLR0917 - generated code calls it by position
        self, access: Access, g: Lanes, address: V, mask: V | None, operation: str, b: V, c: V | None
    ) -> V:
        """Apply lane by lane in ascending order; returns the old values (zero where inactive)."""
        if self.tallies is not None:
            self.tallies.access(access, g, address, mask)
        if mask is not None and mask.ndim == 0:
            if not mask:
                return np.dtype(access.element).type(0)
            mask = None
        old = np.zeros(g.n, access.element)
        for part in self.resolver.parts(access, g, address, mask):
            self._check_initialised(access, g, part)
            where = slice(None) if part.where is None else part.where
            values = [None if v is None else np.broadcast_to(v, g.n)[where] for v in (b, c)]
            target = part.storage.view(access.bytes).view(access.element)
            index = np.broadcast_to(np.asarray(part.index), len(old[where]))
            operands = (operation, values[0], values[1])
            if self.turns is not None:
                old[where] = self.turns.apply(part.storage, target, index, *operands, g.slots[where])
            else:
                old[where] = apply_atomic(target, index, *operands)
            if self.trail is not None:
                self.trail.update(part.storage)
            self.races.log("atomic", access, g, part)
            if self.returns is not None and values[0] is not None:
                self.returns.updated(access, g, part, operation, old[where], values[0])
            self.races.released(g, part)
        return old

    def _strength(self, access: Access, part: Part, plain: str) -> str:
        """What an access is to the race checks: strong ones are ordered like atomics."""
        if not access.strong or (not self.fences and part.space == "shared" and "volatile" in access.opcode):
            return plain
        return "atomic"

    def fence(self, g: Lanes) -> None:
        self.races.fence(g)

    def warp_barrier(self, g: Lanes, mask: V) -> None:  # noqa: ARG002 - the port of generated code
        self.races.warp_barrier(g)

    def barrier(self, lanes: Lanes | None) -> None:
        self.races.barrier(lanes)
        for copy in self.pending:
            self.races.log("async", copy.write, copy.lanes, copy.part)

    def partial_barrier(self, lanes: Lanes, arrivals: Sequence[object] = ()) -> None:
        self.races.partial_barrier(lanes, [each for each in arrivals if isinstance(each, Arrival)])

    def arrived(self, lanes: Lanes) -> Arrival:
        return self.races.arrived(lanes)

    def left(self, lanes: Lanes) -> None:
        self.present[lanes.slots] = False

    def converged(self, g: Lanes, mask: V, line: int) -> None:
        """A warp operation must be executed by the lanes that its mask names, and by no others."""
        if g.whole_warps and mask.ndim == 0 and mask == _FULL_MASK:
            return
        masks = np.broadcast_to(mask, g.n).astype(np.uint32)
        lane = (g.slots % WARP).astype(np.uint32)
        unnamed = (masks >> lane) & np.uint32(1) == 0
        here = per_lane(g, lane_bits(rows(g, np.True_, np.False_)))
        waiting = lane_bits(self.present.reshape(-1, WARP))[g.warps] & ~here
        absent = masks & waiting
        wrong = unnamed | (absent != 0)
        if not wrong.any() or self.findings.known("divergent_warp", line or None):
            return
        position = int(np.argmax(wrong))
        thread, block = self._who(g, position)
        text = f"line {line}: thread {thread} of block {block} executes a warp operation of the mask "
        text += f"0x{int(masks[position]):08x}"
        if unnamed[position]:
            text += f", which doesn't name its lane {int(lane[position])}"
        else:
            other = int(absent[position] & -absent[position]).bit_length() - 1
            text += f", which names lane {other}, and that lane doesn't come"
        self.findings.add(Finding("divergent_warp", text, line or None, thread=thread, block=block))

    def finish_batch(self) -> None:
        self.races.barrier(None)
        if self.turns is not None:
            self.turns.restore()

    def finish(self) -> None:
        """The launch has ended: its race checks, which hold as much as the outputs do, are let go."""
        if self.returns is not None:
            self.returns.finish()
        self.pending = []
        del self.races

    def copy(  # noqa: PLR0917 - generated code calls it by position
        self, read: Access, write: Access, g: Lanes, source: V, target: V, mask: V | None, size: V | None
    ) -> None:
        """`cp.async`: the source is read now, the destination changes when the lanes wait."""
        values = self._copied(read, g, source, mask, size)
        if self.tallies is not None:
            self.tallies.access(write, g, target, mask)
        if mask is not None and mask.ndim == 0:
            if not mask:
                return
            mask = None
        for part in self.resolver.parts(write, g, target, mask):
            unit = _units(write, g, part, tuple(values))
            self.pending.append(PendingCopy(write, g, part, unit, self.groups[g.slots]))
            self.races.log("async", write, g, part)

    def _copied(self, read: Access, g: Lanes, source: V, mask: V | None, size: V | None) -> list[V]:
        if size is None or (size.ndim == 0 and int(size) == read.bytes):
            values = self.load(read, g, source, mask)
            return [values] if read.count == 1 else list(values)
        wanted = np.broadcast_to(size, g.n)
        active = np.ones(g.n, bool) if mask is None else np.broadcast_to(mask, g.n)
        values = self.load(read, g, source, active & (wanted == read.bytes))
        found = [np.broadcast_to(v, g.n).copy() for v in ([values] if read.count == 1 else values)]
        for lane in np.flatnonzero(active & (wanted > 0) & (wanted < read.bytes)):
            for i in range(int(wanted[lane]) // 4):
                only = np.zeros(g.n, bool)
                only[lane] = True
                one = Access(
                    -1, read.opcode, "copy", "global", "u4", 1, read.offset + 4 * i, read.line, read.block
                )
                found[i][lane] = self.load(one, g, source, only)[lane]
        return found

    def commit(self, g: Lanes) -> None:
        self.groups[g.slots] += 1

    def wait(self, g: Lanes, keep: int | None) -> None:
        """Complete the lanes' committed copies but for the `keep` latest groups; for None all, committed or not."""
        limit = self.groups - keep if keep is not None else np.full_like(self.groups, np.iinfo(np.int64).max)
        rest: list[PendingCopy] = []
        done: list[PendingCopy] = []
        mine = g.positions >= 0 if g.n != self.batch.full.n else None
        for copy in self.pending:
            slots = copy.slots
            ready = copy.group < limit[slots]
            if mine is not None:
                ready &= mine[slots]
            if ready.all():
                done.append(copy)
            elif ready.any():
                early, late = copy.part_of(ready), copy.part_of(~ready)
                self.races.split(copy.part, (early.part, late.part))
                done.append(early)
                rest.append(late)
            else:
                rest.append(copy)
        self.pending = rest
        for copy in done:
            self.races.completed(copy.write, copy.lanes, copy.part)
            size = copy.write.bytes
            copy.part.storage.view(size)[copy.part.index] = copy.unit
            assert copy.part.storage.valid is not None  # noqa: S101 - copies land in shared memory, which has it
            copy.part.storage.valid_view(size)[copy.part.index] = _ALL_SET[size]

    def absent_source(self, g: Lanes, absent: np.ndarray, origin: np.ndarray, mask: V, line: int) -> None:
        """A shuffle reads a lane that doesn't take part; harmless where the lane isn't named in the mask."""
        named = (np.broadcast_to(mask, g.n) >> origin.astype(np.uint32)) & np.uint32(1) != 0
        absent = absent & named
        if not absent.any():
            return
        position = int(np.argmax(absent))
        thread, block = self._who(g, position)
        message = (
            f"line {line}: a shuffle of thread {thread} of block {block} reads lane {int(origin[position])}, "
            "which is named in the mask but doesn't execute the shuffle"
        )
        self.findings.add(Finding("divergent_warp", message, line or None, thread=thread, block=block))

    def _check_initialised(self, access: Access, g: Lanes, part: Part) -> None:
        if part.checked or part.storage.valid is None:
            return
        found = np.atleast_1d(part.storage.valid_view(access.bytes).take(part.index)).view("u1")
        if found.size == 0 or found.min() == 255:
            part.checked = True
            return
        position = int(np.argmin(found)) // access.bytes
        lane = position if part.where is None else int(part.where[position])
        index = int(
            np.broadcast_to(np.asarray(part.index), g.n if part.where is None else len(part.where))[position]
        )
        self._complain(
            "uninitialised_read", access, g, lane, index * access.bytes, self.resolver.owner(part.storage)
        )
        part.checked = True

    def _who(self, g: Lanes, position: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        slot = int(g.slots[position])
        return self.batch.thread_of(slot), self.batch.block_of(slot)

    def _complain(self, kind: str, access: Access, g: Lanes, position: int, address: int, where: str) -> None:  # noqa: PLR0917
        if self.findings.known(kind, access.line):  # type: ignore[arg-type]
            return
        thread, block = self._who(g, position)
        verb = _VERBS[access.kind]
        text = f"line {access.line}: thread {thread} of block {block} {verb} {access.bytes} bytes"
        buffer: str | None = where or None
        match kind:
            case "misaligned":
                detail = f" at 0x{address:x}, which is not a multiple of {access.bytes}"
                buffer = None
            case "uninitialised_read":
                place = (
                    "shared memory" if where == "shared" else "local memory" if where == "local" else where
                )
                if where == "shared":
                    address %= self.batch.shared_stride
                detail = f" of {place} at byte {address} that nothing has written"
            case "write_to_readonly":
                detail = f" of {where}, which is read-only"
            case _:
                buffer, detail = self._outside(where, address, access.bytes)
        self.findings.add(
            Finding(
                _KINDS[kind], f"{text}{detail} ({access.opcode})", access.line, address, buffer, thread, block
            )
        )

    def _outside(self, space: str, address: int, size: int) -> tuple[str | None, str]:
        if space in ("shared", "local"):
            ranges = self.resolver.shared_ranges if space == "shared" else self.resolver.local_ranges
            if not ranges:
                return None, f" of {space} memory at byte {address}, but the kernel has none"
            near = min(ranges, key=lambda r: max(r.start - address, address + size - r.end))
            past = address + size - near.end if address + size > near.end else near.start - address
            side = "past the end" if address + size > near.end else "before the start"
            return (
                near.name,
                f" of {space} memory, {past} bytes {side} of {near.name} ({near.end - near.start} bytes)",
            )
        buffer = self.memory.nearest(address)
        if buffer is None:
            return None, f" at 0x{address:x}, and no buffer is there"
        end = buffer.base + buffer.size
        past = address + size - end if address >= buffer.base else buffer.base - address
        side = "past the end" if address >= buffer.base else "before the start"
        return buffer.name, f" at 0x{address:x}, {past} bytes {side} of {buffer.name} ({buffer.size} bytes)"


_KINDS: dict[str, Kind] = {
    "misaligned": "misaligned",
    "uninitialised_read": "uninitialised_read",
    "write_to_readonly": "write_to_readonly",
    "out_of_bounds": "out_of_bounds",
}
_ALL_SET = {
    n: np.full(n, 255, "u1").view({1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}[n])[0]
    for n in (1, 2, 4, 8, 16)
}


class PendingCopy:
    """A `cp.async` that hasn't been waited for; `group` is the number of its commit group by lane."""

    def __init__(self, write: Access, lanes: Lanes, part: Part, unit: np.ndarray, group: np.ndarray) -> None:
        self.write, self.lanes, self.part = write, lanes, part
        self.unit = np.atleast_1d(unit)
        self.slots = lanes.slots if part.where is None else lanes.slots[part.where]
        self.group = group if part.where is None else group[part.where]

    def part_of(self, chosen: np.ndarray) -> PendingCopy:
        where = np.arange(self.lanes.n) if self.part.where is None else self.part.where
        index = np.broadcast_to(np.asarray(self.part.index), len(where))[chosen]
        part = Part(self.part.storage, self.part.space, index, where[chosen])
        full = np.zeros(self.lanes.n, np.int64)
        full[where] = self.group
        unit = np.broadcast_to(self.unit, len(where))[chosen]
        return PendingCopy(self.write, self.lanes, part, unit, full)


def _values(access: Access, part: Part) -> V:
    raw = part.storage.view(access.bytes).take(part.index)
    if access.count == 1:
        return raw.view(access.element)
    return (
        np.ascontiguousarray(np.atleast_1d(raw).view(access.element).reshape(-1, access.count).T)
        if raw.ndim
        else raw.reshape(1).view(access.element)
    )


def _units(access: Access, g: Lanes, part: Part, values: tuple[V, ...]) -> V:
    """The lanes' values as units of the whole access."""
    if access.count > 1:
        n = g.n if part.where is None else len(part.where)
        table = np.empty((n, access.count), access.element)
        for i, value in enumerate(values):
            table[:, i] = value if value.ndim == 0 or part.where is None else value[part.where]
        return table.view({8: "u8", 16: "c16", 4: "u4", 2: "u2"}[access.bytes])[:, 0]
    value = values[0]
    return value if value.ndim == 0 or part.where is None else value[part.where]


def buffer_name(part: Part) -> str | None:
    return part.storage.name if isinstance(part.storage, Buffer) else None
