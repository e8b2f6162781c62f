"""Count what a kernel does at its true shape on sampled blocks, computing only addresses and predicates."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mctskernel.profiling.emulator.arithmetic import V
from mctskernel.profiling.emulator.atomics import apply_atomic
from mctskernel.profiling.emulator.barrier_reductions import BarrierReductions
from mctskernel.profiling.emulator.classes import classify
from mctskernel.profiling.emulator.codegen import Access, Program
from mctskernel.profiling.emulator.control_flow import Block
from mctskernel.profiling.emulator.findings import Finding, Findings
from mctskernel.profiling.emulator.lanes import Batch, Geometry, Lanes
from mctskernel.profiling.emulator.launch import Argument, Launch, prepare, program_of
from mctskernel.profiling.emulator.machine import DEFAULT_LIMITS, LimitExceededError, Limits, Machine
from mctskernel.profiling.emulator.memory import Buffer, GlobalMemory
from mctskernel.profiling.emulator.patterns import Once, Patterns
from mctskernel.profiling.emulator.ptx import Module, UnsupportedPtxError
from mctskernel.profiling.emulator.resolve import Resolver
from mctskernel.profiling.emulator.turns import Place, Turns

TRACE_SECTORS = 1 << 20


@dataclass(frozen=True)
class AccessCounts:
    """What one static memory instruction did in all sampled blocks together.

    `kind` is load, store, atomic, reduction or copy; `space` as resolved (a generic access counts where it went).
    Requests are warp-level; sectors have 32 bytes; `unique_sectors` are distinct within a block, summed over blocks.
    `wavefronts` are of shared memory, `ideal_wavefronts` what they would be without bank conflicts;
    `lines` are lines of 128 bytes that global requests touch; `same_address_lanes` adds up the largest same-address
    group of each atomic request.
    """

    opcode: str
    kind: str
    space: str
    line: int | None
    block: int
    bytes_per_lane: int
    requests: int = 0
    lanes: int = 0
    sectors: int = 0
    unique_sectors: int = 0
    wavefronts: int = 0
    ideal_wavefronts: int = 0
    same_address_lanes: int = 0
    lines: int = 0


@dataclass(frozen=True)
class BasicBlockCounts:
    """Executions of a basic block by warps and lanes, with its source lines and PTX instructions by class."""

    number: int
    warp_executions: int
    lane_executions: int
    lines: tuple[int, ...]
    instructions: Mapping[str, int]


@dataclass(frozen=True)
class Trace:
    """Global sectors of one block in execution order: sector number and index into `Counts.accesses` for each.

    `truncated` when the block touched more than was kept.
    """

    block: int
    sectors: np.ndarray
    accesses: np.ndarray
    truncated: bool


@dataclass(frozen=True)
class Counts:
    """Counts of the sampled blocks. `needs` names buffers that addresses depend on: back them and count again.

    `counters` are places that a thread of a block drew numbers from several times, as from a queue of work.
    """

    blocks: tuple[int, ...]
    accesses: tuple[AccessCounts, ...]
    basic_blocks: tuple[BasicBlockCounts, ...]
    traces: tuple[Trace, ...]
    barriers: int
    needs: tuple[str, ...]
    findings: tuple[Finding, ...]
    seconds: float
    counters: frozenset[Place] = frozenset()

    @property
    def warp_instructions(self) -> dict[str, int]:
        """Warp-level PTX instructions executed, by class."""
        total: dict[str, int] = {}
        for block in self.basic_blocks:
            for name, count in block.instructions.items():
                total[name] = total.get(name, 0) + count * block.warp_executions
        return total

    @property
    def lane_instructions(self) -> int:
        """PTX instructions executed, by thread."""
        return sum(block.lane_executions * sum(block.instructions.values()) for block in self.basic_blocks)

    @property
    def active_lanes(self) -> float:
        """Mean active lanes of a warp instruction, guards aside."""
        lengths = [sum(b.instructions.values()) for b in self.basic_blocks]
        warps = sum(n * b.warp_executions for n, b in zip(lengths, self.basic_blocks, strict=True))
        return self.lane_instructions / warps if warps else 0.0


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
    counters: Collection[Place] | None = None,
) -> Counts:
    """Count sampled blocks (linear block numbers) of a launch; buffers may be virtual.

    Each block draws from integer counters as if all others of the grid did so too, and from `counters` in its turn.
    Loads, stores and atomics aren't checked. What the emulator doesn't know, or a run beyond the limits, is a finding.
    """
    began = time.perf_counter()
    findings = Findings()
    try:
        program = program_of(module, entry, sliced=True)
        launch = prepare(module, module.entries[entry], geometry, arguments, memory, guard_bytes=0)
    except UnsupportedPtxError as error:
        finding = Finding("unsupported", f"the emulator doesn't know {error}", error.line)
        return Counts((), (), (), (), 0, (), (finding,), time.perf_counter() - began)
    machine = Machine(program, findings, limits)
    port = CountingMemory(program, launch, memory, Turns(geometry.blocks, counters))
    stride = -(-launch.shared_bytes // 128) * 128
    done: list[int] = []
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
            done.append(block)
    return port.counts(tuple(done), needs, findings.all(), time.perf_counter() - began)


@dataclass
class _Tally:
    """What an access added up to; the last pattern is multiplied by its `times` when another one follows."""

    requests: int = 0
    lanes: int = 0
    sectors: int = 0
    unique_sectors: int = 0
    wavefronts: int = 0
    ideal_wavefronts: int = 0
    same_address_lanes: int = 0
    lines: int = 0
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
        once, times = self.once, self.times
        self.once, self.times = None, 0
        if once is None:
            return
        self.requests += times * once.requests
        self.lanes += times * once.lanes
        self.sectors += times * (0 if once.sectors is None else len(once.sectors))
        self.wavefronts += times * once.wavefronts
        self.ideal_wavefronts += times * once.ideal_wavefronts
        self.same_address_lanes += times * once.same_address_lanes
        self.lines += times * once.lines


_Recent = tuple[V, V | None, Lanes, Once, int]


def _distinct(sectors: np.ndarray) -> int:
    """How many different sectors there are; by a table where they lie close together, as they mostly do."""
    low, high = int(sectors.min()), int(sectors.max())
    if high - low > 8 * len(sectors) + (1 << 20):
        return len(np.unique(sectors))
    touched = np.zeros(high - low + 1, bool)
    touched[sectors - low] = True
    return int(np.count_nonzero(touched))


@dataclass
class CountingMemory:
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
        self.warp_executions = [0] * len(self.program.flow.blocks)
        self.lane_executions = [0] * len(self.program.flow.blocks)
        self.recent: dict[int, _Recent] = {}

    def start(self, batch: Batch) -> None:
        self.batch = batch
        self.resolver.start(batch)
        self.turns.start(int(batch.blocks[0]))
        self.reductions = BarrierReductions(batch)
        self.recent = {}
        self.kept: list[tuple[int, np.ndarray, int]] = []
        self.kept_sectors = 0

    def executed(self, block: Block, lanes: Lanes) -> None:
        self.warp_executions[block.number] += len(lanes.warp_starts)
        self.lane_executions[block.number] += lanes.n

    def barrier(self, lanes: Lanes | None) -> None:  # noqa: ARG002 - a MemoryPort
        self.barriers += 1

    def partial_barrier(self, lanes: Lanes, arrivals: Sequence[object] = ()) -> None:  # noqa: ARG002
        self.barriers += 1

    def arrived(self, lanes: Lanes) -> object:
        """Nor does it matter here what a barrier orders."""

    def left(self, lanes: Lanes) -> None:
        """Threads that have ended count for nothing more."""

    def finish_batch(self) -> None:
        """Close the trace of the block."""
        lengths = [len(sectors) for _, sectors, _ in self.kept]
        every, which = np.empty(0, np.int64), np.empty(0, np.int32)
        if self.kept:
            every = np.concatenate([sectors for _, sectors, _ in self.kept])
            every += np.repeat([first for _, _, first in self.kept], lengths)
            which = np.repeat(np.array([ordinal for ordinal, _, _ in self.kept], np.int32), lengths)
        for ordinal in np.flatnonzero(np.bincount(which)):
            self.tallies[ordinal].unique_sectors += _distinct(every[which == ordinal])
        truncated = self.kept_sectors > len(every)
        self.traces.append(Trace(int(self.batch.blocks[0]), every, which, truncated))
        self.turns.restore()

    def load(self, access: Access, g: Lanes, address: V, mask: V | None) -> V | np.ndarray | None:
        self._tally(access, g, address, mask)
        if not access.value_needed:
            return None
        result = np.zeros((access.count, g.n), access.element)
        for part in self.resolver.parts(access, g, address, mask if mask is None or mask.ndim else None):
            self._need(part.storage)
            found = part.storage.view(access.bytes).take(part.index)
            if found.ndim == 0 and access.count == 1:
                return found.view(access.element)
            values = np.atleast_1d(found).view(access.element).reshape(-1, access.count).T
            result[:, slice(None) if part.where is None else part.where] = values
        return result[0] if access.count == 1 else result

    def store(
        self, access: Access, g: Lanes, address: V, mask: V | None, values: tuple[V | None, ...]
    ) -> None:
        self._tally(access, g, address, mask)
        if not access.value_needed or values[0] is None or (mask is not None and mask.ndim == 0 and not mask):
            return
        for part in self.resolver.parts(access, g, address, mask if mask is None or mask.ndim else None):
            if isinstance(part.storage, Buffer) and part.storage.virtual:
                continue
            where = np.arange(g.n) if part.where is None else part.where
            table = np.stack([np.broadcast_to(v, g.n)[where] for v in values if v is not None], axis=1)
            unit = np.ascontiguousarray(table).view(part.storage.view(access.bytes).dtype)[:, 0]
            part.storage.view(access.bytes)[np.broadcast_to(np.asarray(part.index), len(where))] = unit

    def atomic(  # noqa: PLR0917
        self, access: Access, g: Lanes, address: V, mask: V | None, operation: str, b: V, c: V | None
    ) -> V:
        self._tally(access, g, address, mask)
        old = np.zeros(g.n, access.element)
        if not access.value_needed or b is None or (mask is not None and mask.ndim == 0 and not mask):
            return old
        for part in self.resolver.parts(access, g, address, mask if mask is None or mask.ndim else None):
            if isinstance(part.storage, Buffer) and part.storage.virtual and access.kind == "reduction":
                continue
            self._need(part.storage)
            where = np.arange(g.n) if part.where is None else part.where
            values = [None if v is None else np.broadcast_to(v, g.n)[where] for v in (b, c)]
            target = part.storage.view(access.bytes).view(access.element)
            index = np.broadcast_to(np.asarray(part.index), len(where))
            operands = (operation, values[0], values[1])
            if access.kind == "atomic":
                old[where] = self.turns.apply(part.storage, target, index, *operands, g.slots[where])
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
            self.store(write, g, target, mask, tuple(np.atleast_2d(values)) if read.count > 1 else (values,))

    def fence(self, *_: object) -> None:
        """Nothing to count here: fences are counted as instructions."""

    commit = warp_barrier = wait = fence

    def converged(self, *_: object) -> None:
        """Nor who takes part in a warp operation."""

    def absent_source(self, *_: object) -> None:
        """Counting reports no findings of correctness."""

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
            self.kept_sectors += len(once.sectors)
            if self.kept_sectors <= TRACE_SECTORS:
                self.kept.append((access.ordinal, once.sectors, first))

    def counts(
        self, blocks: tuple[int, ...], needs: tuple[str, ...], findings: tuple[Finding, ...], seconds: float
    ) -> Counts:
        for tally in self.tallies:
            tally.settle()
        accesses = [
            AccessCounts(
                a.opcode,
                a.kind,
                t.space or a.space,
                a.line,
                a.block,
                a.bytes,
                t.requests,
                t.lanes,
                t.sectors,
                t.unique_sectors,
                t.wavefronts,
                t.ideal_wavefronts,
                t.same_address_lanes,
                t.lines,
            )
            for a, t in zip(self.program.accesses, self.tallies, strict=True)
        ]
        basic = [
            BasicBlockCounts(b.number, warps, lanes, _lines(b), classify(b))
            for b, warps, lanes in zip(
                self.program.flow.blocks, self.warp_executions, self.lane_executions, strict=True
            )
        ]
        return Counts(
            blocks,
            tuple(accesses),
            tuple(basic),
            tuple(self.traces),
            self.barriers,
            needs,
            findings,
            seconds,
            frozenset(self.turns.again),
        )


def _lines(block: Block) -> tuple[int, ...]:
    every = [*block.instructions, *([block.final] if block.final else [])]
    return tuple(sorted({i.line for i in every if i.line}))
