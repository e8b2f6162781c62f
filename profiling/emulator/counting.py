"""Count what a kernel does at its true shape on sampled blocks, computing only addresses and predicates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mctskernel.profiling.emulator.arithmetic import V
from mctskernel.profiling.emulator.async_copies import bulk_copies, warp_requests
from mctskernel.profiling.emulator.atomics import Turns, apply_atomic
from mctskernel.profiling.emulator.coalescing import Once, Patterns
from mctskernel.profiling.emulator.codegen import Access, Program
from mctskernel.profiling.emulator.control_flow import Block, all_of
from mctskernel.profiling.emulator.findings import Finding, Findings
from mctskernel.profiling.emulator.lanes import BarrierReductions, Batch, Geometry, Lanes
from mctskernel.profiling.emulator.launch import Argument, Launch, prepare, program_of
from mctskernel.profiling.emulator.machine import (
    DEFAULT_LIMITS,
    LimitExceededError,
    Limits,
    Machine,
    MemoryPort,
)
from mctskernel.profiling.emulator.memory import Buffer, GlobalMemory, Resolver, gather
from mctskernel.profiling.emulator.ptx import Module, UnsupportedPtxError

TRACE_SECTORS = 1 << 19
"""Sectors of a trace that are kept; of a longer one every access to a sample of the sectors."""


@dataclass(frozen=True)
class AccessCounts:
    """What one static memory instruction did in all sampled blocks together.

    `kind` is load, store, atomic, reduction or copy; `space` as resolved (a generic access counts where it went).
    Requests are warp-level; sectors have 32 bytes. `wavefronts` are of shared memory, `ideal_wavefronts` what they
    would be without bank conflicts; `same_address_lanes` adds up the largest same-address group of each atomic
    request; `lines` are lines of 128 bytes that global requests touch.
    """

    kind: str
    space: str
    line: int | None
    bytes_per_lane: int
    requests: int = 0
    lanes: int = 0
    sectors: int = 0
    wavefronts: int = 0
    ideal_wavefronts: int = 0
    same_address_lanes: int = 0
    lines: int = 0


@dataclass(frozen=True)
class BasicBlockCounts:
    """Executions of a basic block by warps and lanes, and its number of PTX instructions."""

    warp_executions: int
    lane_executions: int
    instructions: int


@dataclass(frozen=True)
class Trace:
    """Global sectors of one block in execution order: sector number and index into `Counts.accesses` for each.

    Of a long trace one sector in `rate` is kept, with every access to it (`is_sampled`).
    """

    sectors: np.ndarray
    accesses: np.ndarray
    rate: int = 1


def is_sampled(sectors: np.ndarray, rate: int) -> np.ndarray:
    """Which sectors belong to a sample of one in `rate`, a power of two; that of a higher rate is a part of it.

    Waldspurger, Park, Garthwaite and Ahmad, "Efficient MRC Construction with SHARDS", FAST 2015.
    """
    if rate == 1:
        return np.ones(len(sectors), dtype=bool)
    hashed = (sectors.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)
    chosen: np.ndarray = (hashed & np.uint64(rate - 1)) == 0
    return chosen


class _TraceWriter:
    """Collects a block's trace; whenever it gets too long, the sampling rate doubles."""

    def __init__(self) -> None:
        self.rate = 1
        self._kept: list[tuple[np.ndarray, np.ndarray]] = []
        self._length = 0
        self._pending: list[tuple[int, np.ndarray, int]] = []
        self._pending_length = 0

    def add(self, access: int, sectors: np.ndarray, first: int) -> None:
        self._pending.append((access, sectors, first))
        self._pending_length += len(sectors)
        if self._pending_length > TRACE_SECTORS:
            self._flush()

    def finish(self) -> Trace:
        self._flush()
        parts = self._kept or [(np.empty(0, np.int64), np.empty(0, np.int32))]
        sectors, accesses = (np.concatenate(each) for each in zip(*parts, strict=True))
        return Trace(sectors, accesses, self.rate)

    def _flush(self) -> None:
        if not self._pending:
            return
        lengths = [len(sectors) for _, sectors, _ in self._pending]
        sectors = np.concatenate([sectors for _, sectors, _ in self._pending])
        sectors += np.repeat([first for _, _, first in self._pending], lengths)
        accesses = np.repeat(np.array([access for access, _, _ in self._pending], np.int32), lengths)
        self._pending, self._pending_length = [], 0
        self._kept.append(_thinned(sectors, accesses, self.rate))
        self._length += len(self._kept[-1][0])
        while self._length > TRACE_SECTORS:
            self.rate *= 2
            self._kept = [_thinned(*part, self.rate) for part in self._kept]
            self._length = sum(len(kept) for kept, _ in self._kept)


def _thinned(sectors: np.ndarray, accesses: np.ndarray, rate: int) -> tuple[np.ndarray, np.ndarray]:
    chosen = is_sampled(sectors, rate)
    return sectors[chosen], accesses[chosen]


@dataclass(frozen=True)
class Counts:
    """Counts of the sampled blocks. `needs` names buffers that addresses depend on: back them and count again."""

    accesses: tuple[AccessCounts, ...]
    basic_blocks: tuple[BasicBlockCounts, ...]
    traces: tuple[Trace, ...]
    barriers: int
    needs: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def warp_instructions(self) -> int:
        return sum(block.instructions * block.warp_executions for block in self.basic_blocks)

    @property
    def lane_instructions(self) -> int:
        return sum(block.instructions * block.lane_executions for block in self.basic_blocks)

    @property
    def active_lanes(self) -> float:
        """Mean active lanes of a warp instruction, guards aside."""
        return self.lane_instructions / self.warp_instructions if self.warp_instructions else 0.0


class NeedsContentsError(Exception):
    """An address or a predicate depends on bytes that aren't there."""


def count(
    module: Module,
    entry: str,
    geometry: Geometry,
    arguments: Sequence[Argument],
    memory: GlobalMemory,
    *,
    blocks: Sequence[int] = (0,),
    limits: Limits = DEFAULT_LIMITS,
) -> Counts:
    """Count sampled blocks (linear block numbers) of a launch; buffers may be virtual.

    Each block draws from integer counters as if all others of the grid did so too.
    Loads, stores and atomics aren't checked. What the emulator doesn't know, or a run beyond the limits, is a finding.
    """
    findings = Findings()
    try:
        program = program_of(module, entry, sliced=True)
        launch = prepare(module, module.entries[entry], geometry, arguments, memory, guard_bytes=0)
    except UnsupportedPtxError as error:
        finding = Finding("unsupported", f"the emulator doesn't know {error}", error.line)
        return Counts((), (), (), 0, (), (finding,))
    machine = Machine(program, findings, limits)
    port = CountingMemory(program, launch, memory, Turns(geometry.blocks))
    stride = -(-launch.shared_bytes // 128) * 128
    needs: tuple[str, ...] = ()
    with np.errstate(all="ignore"):
        for block in blocks:
            batch = Batch(geometry, np.array([block]), stride, lambda: machine.steps)
            port.start(batch)
            try:
                machine.run(batch, port)
            except LimitExceededError:
                break
            except NeedsContentsError as error:
                needs = (str(error),)
                break
    return port.counts(needs, findings.all())


@dataclass
class _Tally:
    """What an access added up to; the last pattern is multiplied by its `times` when another one follows."""

    numbers: list[int] = field(default_factory=lambda: [0] * 7)
    space: str = ""
    once: Once | None = None
    times: int = 0

    def add(self, once: Once) -> None:
        """One more execution; loops repeat a pattern many times over."""
        if once is not self.once:
            self.settle()
            self.once, self.space = once, once.space
        self.times += 1

    def settle(self) -> None:
        """Add what the last pattern comes to."""
        if self.once is not None:
            pairs = zip(self.numbers, self.once.numbers, strict=True)
            self.numbers = [number + self.times * once for number, once in pairs]
        self.once, self.times = None, 0


_Recent = tuple[V, V | None, Lanes, Once, int]


@dataclass
class CountingMemory(MemoryPort):
    """The memory port of `count`: tallies requests; holds values only where addresses depend on them."""

    program: Program
    launch: Launch
    memory: GlobalMemory
    turns: Turns
    barriers: int = 0
    traces: list[Trace] = field(default_factory=list)
    patterns: Patterns = field(default_factory=Patterns)

    def __post_init__(self) -> None:
        self.addresses = self.launch.addresses
        self.parameter = self.launch.parameter
        self.resolver = Resolver(self.memory, self.launch.shared, self.launch.local, lambda *_: None)
        self.tallies = [_Tally() for _ in self.program.accesses]
        self.warp_executions = [0] * len(self.program.blocks)
        self.lane_executions = [0] * len(self.program.blocks)
        self.recent: dict[int, _Recent] = {}

    def start(self, batch: Batch) -> None:
        self.resolver.start(batch)
        self.turns.restore()
        self.reductions = BarrierReductions(batch)
        self.recent = {}
        self.trace = _TraceWriter()

    def executed(self, block: Block, lanes: Lanes) -> None:
        self.warp_executions[block.number] += len(lanes.warp_starts)
        self.lane_executions[block.number] += lanes.n

    def barrier(self, lanes: Lanes | None) -> None:  # noqa: ARG002 - a MemoryPort
        self.barriers += 1

    def partial_barrier(self, lanes: Lanes, arrivals: Sequence[object] = ()) -> None:  # noqa: ARG002
        self.barriers += 1

    def finish_batch(self) -> None:
        """Close the trace of the block."""
        self.traces.append(self.trace.finish())
        self.turns.restore()

    def load(self, access: Access, g: Lanes, address: V, mask: V | None) -> V | np.ndarray | None:
        self._tally(access, g, address, mask)
        if not access.value_needed:
            return None
        parts = self.resolver.parts(access, g, address, mask)
        for part in parts:
            self._need(part.storage)
        return gather(access, g, parts)

    def store(
        self, access: Access, g: Lanes, address: V, mask: V | None, values: tuple[V | None, ...]
    ) -> None:
        self._tally(access, g, address, mask)
        if not access.value_needed or values[0] is None:
            return
        for part in self.resolver.parts(access, g, address, mask):
            if not (isinstance(part.storage, Buffer) and part.storage.virtual):
                part.write(access, g, values)

    def atomic(  # noqa: PLR0917
        self, access: Access, g: Lanes, address: V, mask: V | None, operation: str, b: V, c: V | None
    ) -> V:
        self._tally(access, g, address, mask)
        old = np.zeros(g.n, access.element)
        if not access.value_needed or b is None:
            return old
        for part in self.resolver.parts(access, g, address, mask):
            if isinstance(part.storage, Buffer) and part.storage.virtual and access.kind == "reduction":
                continue
            self._need(part.storage)
            where, index = part.lanes(g), part.indices(g)
            values = [None if v is None else np.broadcast_to(v, g.n)[where] for v in (b, c)]
            target = part.storage.view(access.bytes).view(access.element)
            operands = (operation, values[0], values[1])
            if access.kind == "atomic":
                old[where] = self.turns.apply(part.storage, target, index, *operands)
            else:
                old[where] = apply_atomic(target, index, *operands)
        return old

    def copy(  # noqa: PLR0917
        self, read: Access, write: Access, g: Lanes, source: V, target: V, mask: V | None, size: V | None
    ) -> None:
        active = mask
        if size is not None:
            some = size != 0
            active = some if mask is None else some & mask
        values = self.load(read, g, source, active)
        if values is None:
            self._tally(write, g, target, mask)
        else:
            self.store(write, g, target, mask, tuple(values) if read.count > 1 else (values,))

    def mbarrier_init(self, access: Access, g: Lanes, address: V, mask: V | None, _: V) -> None:
        self._tally(access, g, address, mask)

    def mbarrier_arrive(self, access: Access, g: Lanes, address: V, mask: V | None, _: V, __: V) -> V:
        self._tally(access, g, address, mask)
        return np.zeros(g.n, np.uint64)

    def mbarrier_wait(self, access: Access, g: Lanes, address: V, mask: V | None, _: V, __: str) -> V:
        """Return that the phase has ended: nobody waits here."""
        self._tally(access, g, address, mask)
        return np.ones(g.n, bool)

    def bulk_copy(  # noqa: PLR0917
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
        """Counted as the accesses of a warp that copies the same."""
        for copy in bulk_copies(self.resolver, read, write, g, source, target, mask, size):
            for access, base in ((read, source), (write, target)):
                start = int(np.broadcast_to(base, g.n)[copy.position])
                for warp, address, some in warp_requests(g, copy, start):
                    self._tally(access, warp, address, None if some.all() else some)
            if write.value_needed:
                self._need(copy.source.storage)
                if not (isinstance(copy.target.storage, Buffer) and copy.target.storage.virtual):
                    copy.run()
            if barrier is not None and at is not None:
                self._tally(barrier, g, at, np.arange(g.n) == copy.position)

    def _need(self, storage: object) -> None:
        if isinstance(storage, Buffer) and storage.virtual:
            raise NeedsContentsError(storage.name)

    def _tally(self, access: Access, g: Lanes, address: V, mask: V | None) -> None:
        if mask is not None and mask.ndim == 0:
            if not mask:
                return
            mask = None
        recent = self.recent.get(access.ordinal)
        if recent is not None and recent[0] is address and recent[1] is mask and recent[2] is g:
            once, first = recent[3:]
        else:
            once, first = self.patterns.measure(access, g, address, mask)
            self.recent[access.ordinal] = (address, mask, g, once, first)
        self.tallies[access.ordinal].add(once)
        if once.sectors is not None:
            self.trace.add(access.ordinal, once.sectors, first)

    def counts(self, needs: tuple[str, ...], findings: tuple[Finding, ...]) -> Counts:
        for tally in self.tallies:
            tally.settle()
        accesses = [
            AccessCounts(a.kind, t.space or a.space, a.line, a.bytes, *t.numbers)
            for a, t in zip(self.program.accesses, self.tallies, strict=True)
        ]
        basic = [
            BasicBlockCounts(warps, lanes, _instructions(b))
            for b, warps, lanes in zip(
                self.program.blocks, self.warp_executions, self.lane_executions, strict=True
            )
        ]
        return Counts(tuple(accesses), tuple(basic), tuple(self.traces), self.barriers, needs, findings)


def _instructions(block: Block) -> int:
    """PTX instructions; the barrier stands for the instructions that control flow put beside it."""
    return sum(i.parts[0] not in ("contribute", "contributed") for i in all_of(block))
