"""What one launch asks of a GPU, in plain numbers: the only thing that the model reads besides the GPU."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mctskernel.core.evaluation import Resources
from mctskernel.core.launch_plan import ResolvedLaunch
from mctskernel.profiling.architecture import WARP_LANES, Architecture, Occupancy, occupancy
from mctskernel.profiling.emulator import AccessCounts, Counts
from mctskernel.profiling.machine_code.functions import Function, Instruction, Pipe
from mctskernel.profiling.model.counting import CountedLaunch
from mctskernel.profiling.model.scoreboard import Chain, memory_latency
from mctskernel.profiling.model.traffic import (
    Ints,
    L1Traffic,
    Range,
    Residency,
    Sample,
    distinct,
    dram_traffic,
    l1_capacity,
    l1_traffic,
    lost_by_l2,
)

MERGED = 0.25
"""The part of what blocks share that L2 is asked for once by several SMs, which ask for it at the same time.

Matrix products in tiles on an H100 read 0.5 to 0.95 of what misses L1 from L2, three quarters at the median.
"""


@dataclass(frozen=True)
class AccessPattern:
    """All accesses of one kind from one source line, whole grid.

    `space` is `global`, `shared` or `local`; `kind` is `load`, `store` or `atomic`. `requests` are warp
    instructions; `sectors` are what they touched (global), `wavefronts` the L1 cycles that they took;
    `ideal_sectors` and `ideal_wavefronts` are what the same lanes need when their addresses are consecutive.
    """

    space: str
    kind: str
    line: int | None
    name: str
    bytes_per_lane: int
    requests: float
    lanes: float
    sectors: float
    ideal_sectors: float
    wavefronts: float
    ideal_wavefronts: float


@dataclass(frozen=True)
class KernelWork:
    """One launch. Totals are over the whole grid, and instructions are warp instructions.

    `store_lines` counts the lines of 128 bytes that each store request touches.

    Sectors are 32 bytes. `l2_*` is what passes between L1 and L2, `dram_*` between L2 and DRAM, and `unique_bytes` what
    a cache without limits would move. `atomic_turns` are the turns that atomics take one after the other on the busiest
    lines; `active_lanes` is the mean fraction of lanes at work. `barriers` is per warp.
    """

    kernel: str
    blocks: int
    threads: int
    registers: int
    shared_bytes: int
    occupancy: Occupancy
    instructions: Mapping[Pipe, float]
    chain: Chain
    shuffles: float = 0.0
    tensor_multiply_adds: float = 0.0
    global_wavefronts: float = 0.0
    shared_wavefronts: float = 0.0
    conflict_wavefronts: float = 0.0
    load_requests: float = 0.0
    load_sectors: float = 0.0
    store_requests: float = 0.0
    store_sectors: float = 0.0
    store_lines: float = 0.0
    l2_read_sectors: float = 0.0
    l2_write_sectors: float = 0.0
    dram_read_bytes: float = 0.0
    dram_write_bytes: float = 0.0
    unique_bytes: float = 0.0
    atomic_lanes: float = 0.0
    atomic_turns: float = 0.0
    barriers: float = 0.0
    spill_bytes: int = 0
    spill_wavefronts: float = 0.0
    spill_l2_sectors: float = 0.0
    active_lanes: float = 1.0
    accesses: tuple[AccessPattern, ...] = ()

    @property
    def warps(self) -> int:
        return -(-self.threads // 32)

    @property
    def total_instructions(self) -> float:
        return sum(self.instructions.values())


def kernel_work(
    launch: ResolvedLaunch,
    resources: Resources,
    function: Function,
    gpu: Architecture,
    *,
    counted: CountedLaunch,
    buffers: Sequence[Range],
) -> KernelWork:
    """Put together what the compiler, the machine code and the counted blocks say about one launch."""
    shared_bytes = resources.shared_bytes + launch.shared_bytes
    resident = occupancy(gpu, launch.threads, resources.registers, shared_bytes)
    on_sm = max(1, min(resident.blocks, -(-launch.blocks // gpu.chip.sms)))
    samples = counted.samples
    l1_sectors = l1_capacity(gpu, on_sm, shared_bytes)
    l1 = l1_traffic(samples, l1_sectors)
    residency = Residency(launch.grid, on_sm * gpu.chip.sms)
    dram = dram_traffic(samples, buffers, residency, gpu, neighbour=counted.neighbour, l1_sectors=l1_sectors)
    accesses = _access_patterns(samples, buffers)
    executed = _executed(function, counted.executions)
    shared_wavefronts = sum(a.wavefronts for a in accesses if a.space == "shared")
    spilled = executed.local_loads + executed.local_stores
    footprint = resources.stack_bytes * launch.threads * on_sm
    past_l1 = 4 if footprint > l1_capacity(gpu, 1, shared_bytes * on_sm) * 32 else 0
    spill_reads, spill_writes = past_l1 * executed.local_loads, past_l1 * executed.local_stores
    past_l2 = gpu.memory.sector_bytes * lost_by_l2(footprint * min(gpu.chip.sms, launch.blocks), gpu)
    from_dram = min(1.0, dram.read_bytes / max(l1.read_sectors * gpu.memory.sector_bytes, 1.0))
    return KernelWork(
        kernel=launch.kernel,
        blocks=launch.blocks,
        threads=launch.threads,
        registers=resources.registers,
        shared_bytes=shared_bytes,
        occupancy=resident,
        instructions=executed.by_pipe,
        chain=counted.chain_of(memory_latency(gpu.latency, _load_latency(l1, from_dram, gpu))),
        shuffles=executed.shuffles,
        tensor_multiply_adds=executed.tensor_multiply_adds,
        global_wavefronts=sum(a.wavefronts for a in accesses if a.space == "global"),
        shared_wavefronts=shared_wavefronts,
        conflict_wavefronts=sum(a.wavefronts - a.ideal_wavefronts for a in accesses if a.space == "shared"),
        load_requests=sum(a.requests for a in accesses if (a.space, a.kind) == ("global", "load")),
        load_sectors=sum(a.sectors for a in accesses if (a.space, a.kind) == ("global", "load")),
        store_requests=sum(a.requests for a in accesses if (a.space, a.kind) == ("global", "store")),
        store_sectors=sum(a.sectors for a in accesses if (a.space, a.kind) == ("global", "store")),
        store_lines=_store_lines(accesses, l1),
        l2_read_sectors=max(l1.read_sectors * (1.0 - MERGED * dram.shared), dram.loaded_sectors),
        l2_write_sectors=l1.write_sectors + spill_writes,
        dram_read_bytes=dram.read_bytes + past_l2 * spill_reads,
        dram_write_bytes=dram.write_bytes + past_l2 * spill_writes,
        unique_bytes=dram.unique_bytes,
        atomic_lanes=sum(a.lanes for a in accesses if (a.space, a.kind) == ("global", "atomic")),
        atomic_turns=_atomic_turns(samples),
        barriers=sum(s.weight * s.counts.barriers for s in samples) / launch.blocks,
        spill_bytes=resources.spill_store_bytes,
        spill_wavefronts=spilled,
        spill_l2_sectors=spill_reads,
        active_lanes=_active_lanes(samples),
        accesses=accesses,
    )


@dataclass(frozen=True)
class _Executed:
    by_pipe: dict[Pipe, float]
    shuffles: float
    tensor_multiply_adds: float
    local_loads: float
    local_stores: float


def _executed(function: Function, executions: np.ndarray) -> _Executed:
    by_pipe: dict[Pipe, float] = {}
    shuffles = tensor = loads = stores = 0.0
    for instruction, times in zip(function.instructions, executions.tolist(), strict=True):
        if not times:
            continue
        by_pipe[instruction.pipe] = by_pipe.get(instruction.pipe, 0.0) + times
        match instruction.mnemonic:
            case "SHFL":
                shuffles += times
            case "LDL":
                loads += times * _words(instruction.opcode)
            case "STL":
                stores += times * _words(instruction.opcode)
            case _ if instruction.pipe is Pipe.TENSOR:
                tensor += times * tensor_work(instruction)
    return _Executed(by_pipe, shuffles, tensor, loads, stores)


def _words(opcode: str) -> int:
    return 4 if ".128" in opcode else 2 if ".64" in opcode else 1


_SHAPE = re.compile(r"\.(16)(8)(\d+)|\.(8)(8)(\d+)")
_SLOWER = {"TF32": 2.0, "F64": 16.0}  # how much longer a product takes than one of 16-bit floats


def tensor_work(instruction: Instruction) -> float:
    """A tensor instruction's multiply-adds as those of 16-bit floats; HMMA.16816 is 16 x 8 x 16."""
    match = _SHAPE.search(instruction.opcode)
    if not match:
        return 0.0
    m, n, k = (int(part) for part in match.groups() if part)
    parts = instruction.opcode.split(".")
    slower = next((factor for name, factor in _SLOWER.items() if name in parts), 1.0)
    return m * n * k * slower / (2.0 if instruction.mnemonic[0] in "IQ" else 1.0)


def _load_latency(l1: L1Traffic, from_dram: float, gpu: Architecture) -> Callable[[Instruction], float]:
    """Expected cycles of a load, which waits for the slowest of its sectors.

    So L1 serves it only when all of them hit. What comes from DRAM comes for all of a request or none of it, since
    blocks that share data share whole rows of it.
    """
    latency = gpu.latency

    def cycles(instruction: Instruction) -> float:
        rate = l1.hit_rate.get(instruction.line, 0.0)
        sectors = max(l1.sectors_per_request.get(instruction.line, 1.0), 1.0)
        all_hit = rate**sectors
        beyond = (1.0 - from_dram) * latency.l2 + from_dram * latency.dram
        return float(all_hit * latency.l1 + (1.0 - all_hit) * beyond)

    return cycles


def _store_lines(accesses: Sequence[AccessPattern], l1: L1Traffic) -> float:
    """Lines that L2 is sent, each a turn of its own: those of the requests, less what L1 combines."""
    stores = [access for access in accesses if (access.space, access.kind) == ("global", "store")]
    touched = sum(access.sectors for access in stores)
    lines = sum(access.wavefronts for access in stores)
    return lines * min(1.0, l1.write_sectors / touched) if touched else 0.0


_KINDS = {"reduction": "atomic", "copy": "load"}


def _access_patterns(samples: Sequence[Sample], buffers: Sequence[Range]) -> tuple[AccessPattern, ...]:
    """Accesses of the whole grid by space, kind, line and buffer."""
    patterns: dict[tuple[str, str, int | None, str, int], list[float]] = {}
    for sample in samples:
        names = _buffer_names(sample.counts, buffers)
        for index, access in enumerate(sample.counts.accesses):
            if not access.requests or access.space not in {"global", "shared"}:
                continue
            kind = _KINDS.get(access.kind, access.kind)
            key = (access.space, kind, access.line, names.get(index, ""), access.bytes_per_lane)
            numbers = patterns.setdefault(key, [0.0] * 6)
            for at, value in enumerate(_numbers(access)):
                numbers[at] += sample.weight * value
    return tuple(
        AccessPattern(space, kind, line, name, width, *numbers)
        for (space, kind, line, name, width), numbers in patterns.items()
    )


def _numbers(access: AccessCounts) -> tuple[float, float, float, float, float, float]:
    """Requests, lanes, sectors, ideal sectors, wavefronts, ideal wavefronts of one instruction in one block.

    A global request takes a wavefront for every line of 128 bytes that it touches, one at least.
    """
    if access.space == "shared":
        return access.requests, access.lanes, 0.0, 0.0, access.wavefronts, access.ideal_wavefronts
    ideal = min(access.sectors, max(access.lanes * access.bytes_per_lane / 32, access.requests))
    wavefronts = max(access.lines, access.requests)
    best = min(wavefronts, max(access.lanes * access.bytes_per_lane / 128, access.requests))
    return access.requests, access.lanes, access.sectors, ideal, wavefronts, best


def _buffer_names(counts: Counts, buffers: Sequence[Range]) -> dict[int, str]:
    """For each access, the buffer that it touches first."""
    names: dict[int, str] = {}
    for trace in counts.traces:
        sectors = np.full(len(counts.accesses), -1)
        # Of what is assigned to one place the last stays: the first of what is read backwards.
        sectors[trace.accesses[::-1]] = trace.sectors[::-1]
        which = np.flatnonzero(np.bincount(trace.accesses))
        for access, sector in zip(which.tolist(), sectors[which].tolist(), strict=True):
            names[access] = next((b.name for b in buffers if b.first <= sector <= b.last), "")
    return names


SECTORS_A_TURN = 2.8
"""Sectors of one line of 128 bytes on which L2 does atomics while two on one address take their turns."""

MORE_LINES = 0.38
"""The power of the number of lines with which that grows, since ever more parts of L2 share the work.

Measured on an H100 by warps that each add to the 32 floats of a line: on one line 2.8 sectors are done in the 1.76 ns
of a turn, on eight neighbouring lines 6.0; `l2_atomics_per_second`, on 65536 lines, comes to 184.
"""


def _atomic_turns(samples: Sequence[Sample]) -> float:
    """Turns of global atomics, each as long as that of a lane where all others add to the same address.

    Lanes of one address go one after the other, and so do sectors of a line or its neighbours, only faster.
    """
    conflicts = visits = 0.0
    touched: list[Ints] = []
    for sample in samples:
        accesses = sample.counts.accesses
        chosen = [i for i, a in enumerate(accesses) if a.kind in _ATOMIC and a.space == "global"]
        if not chosen:
            continue
        lines = [trace.sectors[np.isin(trace.accesses, chosen)] >> 2 for trace in sample.counts.traces]
        touched.append(distinct(np.concatenate(lines)) if lines else np.empty(0, np.int64))
        conflicts += sample.weight * sum(accesses[i].same_address_lanes for i in chosen)
        visits += sample.weight * sum(accesses[i].sectors for i in chosen)
    if not visits:
        return 0.0
    number = max(1.0, sum(map(len, touched)) / len(touched))
    return max(conflicts / number, visits / (SECTORS_A_TURN * math.pow(number, MORE_LINES)))


_ATOMIC = frozenset({"atomic", "reduction"})


def _active_lanes(samples: Sequence[Sample]) -> float:
    total = sum(sample.weight for sample in samples)
    return sum(sample.weight * sample.counts.active_lanes for sample in samples) / total / WARP_LANES
