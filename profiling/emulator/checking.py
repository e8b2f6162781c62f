"""The memory of an execution that checks everything: bounds, alignment, initialisation, races, pending copies."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mctskernel.profiling.emulator.arithmetic import V
from mctskernel.profiling.emulator.async_copies import MBarrier, active, bulk_copies
from mctskernel.profiling.emulator.atomics import apply_atomic
from mctskernel.profiling.emulator.codegen import Access, Program
from mctskernel.profiling.emulator.findings import Finding, Findings, Kind
from mctskernel.profiling.emulator.lanes import (
    WARP,
    BarrierReductions,
    Batch,
    Geometry,
    Lanes,
    lane_bits,
    per_lane,
    rows,
)
from mctskernel.profiling.emulator.launch import Argument, Launch, prepare, program_of
from mctskernel.profiling.emulator.machine import (
    DEFAULT_LIMITS,
    LimitExceededError,
    Limits,
    Machine,
    MemoryPort,
    batches,
)
from mctskernel.profiling.emulator.memory import GlobalMemory, Part, Resolver, gather
from mctskernel.profiling.emulator.ptx import Module, UnsupportedPtxError
from mctskernel.profiling.emulator.races import Arrival, RaceDetector

_FULL_MASK = np.uint32(0xFFFFFFFF)
_VERBS = {"load": "reads", "store": "writes", "atomic": "updates", "reduction": "updates", "copy": "copies"}


class CheckedMemory(MemoryPort):
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
    ) -> None:
        """`fences` says whether the kernel has any: without them its volatile accesses publish nothing."""
        self.addresses = launch.addresses
        self.parameter = launch.parameter
        self.memory = memory
        self.findings = findings
        self.resolver = Resolver(memory, launch.shared, launch.local, self._complain)
        self.races = RaceDetector(findings, granule, blocks)
        self.fences = fences
        self.pending: list[PendingCopy] = []

    def start(self, batch: Batch) -> None:
        self.batch = batch
        self.resolver.start(batch)
        self.races.start(batch, self.resolver.shared)
        self.reductions = BarrierReductions(batch)
        self.pending = []
        self.barriers: dict[int, MBarrier] = {}
        self.groups = np.zeros(batch.slots, np.int64)
        self.present = np.zeros(batch.slots, bool)
        self.present[batch.full.slots] = True

    def load(self, access: Access, g: Lanes, address: V, mask: V | None) -> V | np.ndarray:
        """Values of the lanes' addresses: (lanes,) or, for vectors, (count, lanes); zero where inactive."""
        parts = self.resolver.parts(access, g, address, mask)
        for part in parts:
            self._check_initialised(access, g, part)
            self.races.log(self._strength(access, part, "read"), access, g, part)
            if access.strong:
                self.races.released(g, part)
        return gather(access, g, parts)

    def store(self, access: Access, g: Lanes, address: V, mask: V | None, values: tuple[V, ...]) -> None:
        for part in self.resolver.parts(access, g, address, mask):
            unit = part.write(access, g, values)
            self.races.log(self._strength(access, part, "write"), access, g, part, unit)
            if access.strong:
                self.races.released(g, part)

    def atomic(  # noqa: PLR0917 - generated code calls it by position
        self, access: Access, g: Lanes, address: V, mask: V | None, operation: str, b: V, c: V | None
    ) -> V:
        """Apply lane by lane in ascending order; returns the old values (zero where inactive)."""
        old = np.zeros(g.n, access.element)
        for part in self.resolver.parts(access, g, address, mask):
            self._check_initialised(access, g, part)
            where = part.lanes(g)
            values = [None if v is None else np.broadcast_to(v, g.n)[where] for v in (b, c)]
            target = part.storage.view(access.bytes).view(access.element)
            old[where] = apply_atomic(target, part.indices(g), operation, values[0], values[1])
            self.races.log("atomic", access, g, part)
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
        text = f"line {line}: {self._who(g, position)} executes a warp operation of the mask "
        text += f"0x{int(masks[position]):08x}"
        if unnamed[position]:
            text += f", which doesn't name its lane {int(lane[position])}"
        else:
            other = int(absent[position] & -absent[position]).bit_length() - 1
            text += f", which names lane {other}, and that lane doesn't come"
        self.findings.add(Finding("divergent_warp", text, line or None))

    def finish_batch(self) -> None:
        self.races.barrier(None)

    def finish(self) -> None:
        """The launch has ended; free the race checks, which take as much memory as the outputs."""
        self.pending = []
        del self.races

    def copy(  # noqa: PLR0917 - generated code calls it by position
        self, read: Access, write: Access, g: Lanes, source: V, target: V, mask: V | None, size: V | None
    ) -> None:
        """`cp.async`: the source is read now, the destination changes when the lanes wait."""
        values = self._copied(read, g, source, mask, size)
        for part in self.resolver.parts(write, g, target, mask):
            unit = part.units(write, g, tuple(values))
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

    def mbarrier_init(self, access: Access, g: Lanes, address: V, mask: V | None, count: V) -> None:
        """`mbarrier.init`, or `inval` with a count of zero."""
        for part in self.resolver.parts(access, g, address, mask):
            part.write(access, g, (np.uint64(0),))
            self.races.log("write", access, g, part)
            for index, each in zip(part.indices(g), np.broadcast_to(count, g.n)[part.lanes(g)], strict=True):
                self.barriers[int(index)] = MBarrier(int(each), int(each))

    def mbarrier_arrive(  # noqa: PLR0917 - generated code calls it by position
        self, access: Access, g: Lanes, address: V, mask: V | None, count: V, nbytes: V
    ) -> V:
        """Arrive so many times, and wait for so many bytes more; returns the phase."""
        tokens = np.zeros(g.n, np.uint64)
        arrival = self.races.arrived(g.subset(np.asarray(here))) if (here := active(g, mask)) else None
        for lanes, barrier in self._barriers(access, g, address, mask):
            for lane in lanes.tolist():
                tokens[lane] = barrier.phase
                barrier.pending -= int(np.broadcast_to(count, g.n)[lane])
                barrier.bytes += int(np.broadcast_to(nbytes, g.n)[lane])
                barrier.arriving.append(arrival)
                barrier.settle()
        return tokens

    def mbarrier_wait(  # noqa: PLR0917 - generated code calls it by position
        self, access: Access, g: Lanes, address: V, mask: V | None, number: V, form: str
    ) -> V:
        """Whether a phase has ended: the one with this number or, by its `form`, of this parity."""
        done = np.zeros(g.n, bool)
        arrivals: list[object] = []
        wanted = np.broadcast_to(number, g.n)
        for lanes, barrier in self._barriers(access, g, address, mask):
            phase, theirs = barrier.phase, wanted[lanes]
            done[lanes] = theirs % 2 != phase % 2 if form == "parity" else theirs < phase
            if done[lanes].any():
                arrivals += barrier.arrived
        if done.any():
            waited = g.subset(np.flatnonzero(done))
            self.partial_barrier(waited, list({id(each): each for each in arrivals}.values()))
            # What one lane of a warp has waited for is there for the others too.
            self.races.warp_barrier(waited)
        return done

    def _barriers(
        self, access: Access, g: Lanes, address: V, mask: V | None
    ) -> Iterator[tuple[np.ndarray, MBarrier]]:
        """The active lanes of each mbarrier, in order; those that nothing has initialised are complained of."""
        for part in self.resolver.parts(access, g, address, mask):
            self._check_initialised(access, g, part)
            self.races.log("atomic", access, g, part)
            lanes, indices = part.lanes(g), part.indices(g)
            order = np.argsort(indices, kind="stable")
            ends = np.flatnonzero(np.diff(indices[order])) + 1
            for group in np.split(order, ends):
                if len(group) and (index := int(indices[group[0]])) in self.barriers:
                    yield lanes[group], self.barriers[index]

    def bulk_copy(  # noqa: PLR0917 - generated code calls it by position
        self,
        read: Access,
        write: Access,
        g: Lanes,
        source: V,
        target: V,
        mask: V | None,
        size: V,
        barrier: Access | None,
        at: V | None,
    ) -> None:
        """`cp.async.bulk`, with the mbarrier that is told of it."""
        for copy in bulk_copies(self.resolver, read, write, g, source, target, mask, size):
            self._check_initialised(read, g, copy.source)
            self.races.log("read", read, g, copy.source)
            self.races.log("write", write, g, copy.target, copy.run())
        if barrier is None or at is None:
            return
        # A copy that can't be is a finding already: those that wait for it go on.
        for position in active(g, mask):
            only = np.arange(g.n) == position
            for _, each in self._barriers(barrier, g, at, only):
                each.arriving.append(self.races.arrived(g.subset(np.flatnonzero(only))))
                each.bytes -= int(np.broadcast_to(size, g.n)[position])
                each.settle()

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
            copy.part.storage.write(copy.write.bytes, copy.part.index, copy.unit)

    def absent_source(self, g: Lanes, absent: np.ndarray, origin: np.ndarray, mask: V, line: int) -> None:
        """A shuffle reads a lane that doesn't take part; harmless where the lane isn't named in the mask."""
        named = (np.broadcast_to(mask, g.n) >> origin.astype(np.uint32)) & np.uint32(1) != 0
        absent = absent & named
        if not absent.any():
            return
        position = int(np.argmax(absent))
        message = (
            f"line {line}: a shuffle of {self._who(g, position)} reads lane {int(origin[position])}, "
            "which is named in the mask but doesn't execute the shuffle"
        )
        self.findings.add(Finding("divergent_warp", message, line or None))

    def _check_initialised(self, access: Access, g: Lanes, part: Part) -> None:
        if part.checked or part.storage.valid is None:
            return
        found = np.atleast_1d(part.storage.valid.view(access.bytes).take(part.index)).view("u1")
        if found.size == 0 or found.min() == 255:
            part.checked = True
            return
        position = int(np.argmin(found)) // access.bytes
        lane, index = int(part.lanes(g)[position]), int(part.indices(g)[position])
        self._complain(
            "uninitialised_read", access, g, lane, index * access.bytes, self.resolver.owner(part.storage)
        )
        part.checked = True

    def _who(self, g: Lanes, position: int) -> str:
        slot = int(g.slots[position])
        return f"thread {self.batch.thread_of(slot)} of block {self.batch.block_of(slot)}"

    def _complain(  # noqa: PLR0917
        self, kind: Kind, access: Access, g: Lanes, position: int, address: int, where: str
    ) -> None:
        if self.findings.known(kind, access.line):
            return
        text = f"line {access.line}: {self._who(g, position)} {_VERBS[access.kind]} {access.bytes} bytes"
        match kind:
            case "misaligned":
                detail = f" at 0x{address:x}, which is not a multiple of {access.bytes}"
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
                detail = self._outside(where, address, access.bytes)
        self.findings.add(Finding(kind, f"{text}{detail} ({access.opcode})", access.line, buffer=where))

    def _outside(self, space: str, address: int, size: int) -> str:
        if space in ("shared", "local"):
            ranges = self.resolver.shared_ranges if space == "shared" else self.resolver.local_ranges
            if not ranges:
                return f" of {space} memory at byte {address}, but the kernel has none"
            near = min(ranges, key=lambda r: max(r.start - address, address + size - r.end))
            past = address + size - near.end if address + size > near.end else near.start - address
            side = "past the end" if address + size > near.end else "before the start"
            return f" of {space} memory, {past} bytes {side} of {near.name} ({near.end - near.start} bytes)"
        buffer = self.memory.nearest(address)
        if buffer is None:
            return f" at 0x{address:x}, and no buffer is there"
        end = buffer.base + buffer.size
        past = address + size - end if address >= buffer.base else buffer.base - address
        side = "past the end" if address >= buffer.base else "before the start"
        return f" at 0x{address:x}, {past} bytes {side} of {buffer.name} ({buffer.size} bytes)"


class PendingCopy:
    """A `cp.async` that hasn't been waited for; `group` is the number of its commit group by lane."""

    def __init__(self, write: Access, lanes: Lanes, part: Part, unit: np.ndarray, group: np.ndarray) -> None:
        self.write, self.lanes, self.part = write, lanes, part
        self.unit = np.atleast_1d(unit)
        self.slots = part.slots(lanes)
        self.group = part.of_lanes(group)

    def part_of(self, chosen: np.ndarray) -> PendingCopy:
        full = np.zeros(self.lanes.n, np.int64)
        full[self.part.lanes(self.lanes)] = self.group
        unit = np.broadcast_to(self.unit, len(self.slots))[chosen]
        return PendingCopy(self.write, self.lanes, self.part.subset(self.lanes, chosen), unit, full)


@dataclass(frozen=True)
class Execution:
    """What a run found. `lane_instructions` counts PTX instructions by thread."""

    findings: tuple[Finding, ...]
    lane_instructions: int


def unsupported(module: Module, entry: str) -> str:
    """What the emulator doesn't know of an entry, and on which line; empty when it can run it."""
    try:
        program_of(module, entry, sliced=False)
    except UnsupportedPtxError as error:
        return str(error)
    return ""


def execute(
    module: Module,
    entry: str,
    geometry: Geometry,
    arguments: Sequence[Argument],
    memory: GlobalMemory,
    *,
    blocks: Sequence[int] | None = None,
    head_start: int = 0,
    limits: Limits = DEFAULT_LIMITS,
) -> Execution:
    """Run every block of a launch, or those whose numbers are given, in their order, writing to `memory`.

    The first `head_start` of them run before the others begin, where the kernel has atomics by which it can notice.

    Arguments are one a parameter: addresses, numbers, numpy scalars or bytes. What is wrong with the kernel comes
    back as findings, also what the emulator doesn't know; `ValueError` and `KeyError` are the caller's mistakes.
    """
    function = module.entries[entry]
    findings = Findings()
    try:
        program = program_of(module, entry, sliced=False)
        launch = prepare(module, function, geometry, arguments, memory)
    except UnsupportedPtxError as error:
        finding = Finding("unsupported", f"the emulator doesn't know {error}", error.line)
        return Execution((finding,), 0)
    machine = Machine(program, findings, limits)
    port = CheckedMemory(
        launch,
        memory,
        findings,
        _granule(program),
        geometry.blocks,
        fences=any(i.parts[0] in ("fence", "membar") for b in program.blocks for i in b.instructions),
    )
    stride = -(-launch.shared_bytes // 128) * 128
    # A result that depends on a clock is wrong sooner or later.
    started = secrets.randbits(60)
    with np.errstate(all="ignore"):
        for some in batches(range(geometry.blocks) if blocks is None else blocks, geometry.threads):
            batch = Batch(geometry, some, stride, lambda: started + machine.steps)
            port.start(batch)
            try:
                machine.run(batch, port, head_start)
            except LimitExceededError:
                break
            head_start = 0
    port.finish()
    return Execution(findings.all(), machine.lane_instructions)


def _granule(program: Program) -> int:
    """The finest unit in which the kernel touches shared or global memory, at most 4 bytes."""
    sizes = [int(a.element[1:]) for a in program.accesses if a.space != "local"]
    return min([4, *sizes])
