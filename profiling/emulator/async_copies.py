"""mbarriers and bulk copies (`cp.async.bulk`), done at once: a copy has arrived when the next instruction begins.

What a copy writes is ordered before what others do only for threads that have waited for its mbarrier, so reads that
don't wait are races. That a copy is waited for before shared memory is used again, and `fence.proxy.async`, aren't
checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from mctskernel.profiling.emulator.arithmetic import V
from mctskernel.profiling.emulator.codegen import Access, Emitter, Handler
from mctskernel.profiling.emulator.lanes import WARP, Lanes
from mctskernel.profiling.emulator.memory import Part, Resolver, Storage
from mctskernel.profiling.emulator.ptx import Instruction

UNIT = 16  # bulk copies are of multiples of so many bytes, at multiples of them


@dataclass
class MBarrier:
    """An mbarrier: arrivals and bytes that its phase still waits for, and who had arrived when the last one ended."""

    expected: int
    pending: int
    bytes: int = 0
    phase: int = 0
    arriving: list[object] = field(default_factory=list)
    arrived: list[object] = field(default_factory=list)

    def settle(self) -> None:
        """End the phase if nothing is missing."""
        if self.pending == 0 and self.bytes == 0:
            self.phase += 1
            self.pending = self.expected
            self.arrived, self.arriving = self.arriving, []


@dataclass(frozen=True)
class BulkCopy:
    """What one lane copies: places of so many units, of which each counts as an access of that lane."""

    position: int
    source: Part
    target: Part
    nbytes: int

    def run(self) -> V:
        units = self.source.storage.view(UNIT).take(self.source.index)
        self.target.storage.write(UNIT, self.target.index, units)
        return units


def bulk_copies(  # noqa: PLR0917 - as generated code has them
    resolver: Resolver, read: Access, write: Access, g: Lanes, source: V, target: V, mask: V | None, size: V
) -> Iterator[BulkCopy]:
    """The copies of the active lanes that lie within memory; the resolver complains of the others."""
    for position in active(g, mask):
        nbytes = int(np.broadcast_to(size, g.n)[position])
        parts = [
            _span(resolver, access, g, position, address, nbytes)
            for access, address in ((read, source), (write, target))
        ]
        if parts[0] is not None and parts[1] is not None:
            yield BulkCopy(position, parts[0], parts[1], nbytes)


def active(g: Lanes, mask: V | None) -> list[int]:
    """The positions of the lanes that take part."""
    return np.flatnonzero(np.broadcast_to(True if mask is None else mask, g.n)).tolist()


def _span(  # noqa: PLR0917
    resolver: Resolver, access: Access, g: Lanes, position: int, address: V, nbytes: int
) -> Part | None:
    start = int(np.broadcast_to(address, g.n)[position]) + access.offset
    if start % UNIT or nbytes % UNIT:
        resolver.complain("misaligned", access, g, position, start if start % UNIT else nbytes, "")
        return None
    row = 0
    storage: Storage | None = None
    if access.space == "shared":
        if any(r.start <= start and start + nbytes <= r.end for r in resolver.shared_ranges):
            storage = resolver.shared
        row = int(g.block_index[position]) * (resolver.batch.shared_stride // UNIT)
        first = start // UNIT
    else:
        storage = buffer = resolver.memory.find(start, start + nbytes)
        first = 0 if buffer is None else (start - buffer.base) // UNIT
        if buffer is not None and access.kind == "store" and not buffer.writable:
            resolver.complain("write_to_readonly", access, g, position, start, buffer.name)
            return None
    if storage is None:
        resolver.complain("out_of_bounds", access, g, position, start, access.space)
        return None
    index = np.arange(first + row, first + row + nbytes // UNIT)
    return Part(storage, access.space, index, np.full(len(index), position))


def warp_requests(g: Lanes, copy: BulkCopy, start: int) -> Iterator[tuple[Lanes, V, V]]:
    """The requests of a warp that would copy the same: its lanes, an address of each, and which of them take part."""
    slots = g.batch.full.slots
    warp = Lanes(g.batch, slots[slots // WARP == int(g.slots[copy.position]) // WARP])
    places = UNIT * np.arange(warp.n)
    for offset in range(0, copy.nbytes, UNIT * warp.n):
        yield warp, (start + offset + places).astype(np.uint64), offset + places < copy.nbytes


_MBARRIER = re.compile(
    r"mbarrier\.(?P<what>init|inval|expect_tx|arrive|test_wait|try_wait)(?P<mode>\.expect_tx|\.parity)?"
    r"(?:\.(?:acquire|release|relaxed))?(?:\.(?:cta|cluster))?(?P<shared>\.shared(?:::cta|::cluster)?)?\.b64"
)


def _mbarrier(emitter: Emitter, instruction: Instruction) -> None:
    match = _MBARRIER.fullmatch(instruction.opcode)
    if match is None:
        raise emitter.unsupported()
    what, mode, operands = match["what"], match["mode"] or "", list(instruction.operands)
    target = operands.pop(0) if what in ("arrive", "test_wait", "try_wait") else None
    base, offset = emitter.address(operands.pop(0))
    kind = "store" if what in ("init", "inval") else "atomic"
    space = "shared" if match["shared"] else "generic"
    access = emitter.access(kind, space, "u8", offset=offset, strong=kind == "atomic")
    where = f"{access}, g, {base}, {emitter.guard()}"
    none, number = emitter.constant(0, "u4"), emitter.constant(1, "u4")
    if operands:
        number = emitter.read(operands[0], "b64" if what.endswith("wait") and not mode else "b32")
    match what:
        case "test_wait" | "try_wait":
            emitter.assign(
                target, emitter.temporary(f"m.mbarrier_wait({where}, {number}, {mode[1:]!r})"), "b1"
            )
        case "init":
            emitter.emit(f"m.mbarrier_init({where}, {number})")
        case "inval":
            emitter.emit(f"m.mbarrier_init({where}, {none})")
        case "expect_tx":
            emitter.emit(f"m.mbarrier_arrive({where}, {none}, {number})")
        case _:
            count, nbytes = (emitter.constant(1, "u4"), number) if mode else (number, none)
            emitter.assign(target, emitter.temporary(f"m.mbarrier_arrive({where}, {count}, {nbytes})"), "u8")


_BULK = re.compile(
    r"cp\.async\.bulk\.(?:shared::(?:cluster|cta)\.global\.mbarrier::complete_tx::bytes|global\.shared::cta\.bulk_group)"
    r"(?:\.L2::cache_hint)?"
)
_ORDERING = re.compile(r"cp\.async\.bulk\.(?:commit_group|wait_group(?:\.read)?)")


def bulk_copy(emitter: Emitter, instruction: Instruction) -> None:
    """`cp.async.bulk` and the instructions that order it, which have nothing to wait for."""
    if _ORDERING.fullmatch(instruction.opcode):
        return
    if not _BULK.fullmatch(instruction.opcode):
        raise emitter.unsupported()
    target, source, size, *rest = instruction.operands
    inwards = "mbarrier" in instruction.opcode
    to, to_offset = emitter.address(target)
    origin, origin_offset = emitter.address(source)
    spaces = ("global", "shared") if inwards else ("shared", "global")
    read = emitter.access("copy", spaces[0], "u4", count=4, offset=origin_offset)
    write = emitter.access("store", spaces[1], "u4", count=4, offset=to_offset)
    barrier, at = "None", "None"
    if inwards:
        at, offset = emitter.address(rest[0])
        barrier = emitter.access("atomic", "shared", "u8", offset=offset, strong=True)
    nbytes = emitter.read(size, "b32")
    emitter.emit(
        f"m.bulk_copy({read}, {write}, g, {origin}, {to}, {emitter.guard()}, {nbytes}, {barrier}, {at})"
    )


ASYNC: dict[str, Handler] = {"mbarrier": _mbarrier}
