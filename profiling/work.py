"""What one launch asks of a GPU, in plain numbers: the only thing that the model reads besides the GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mctskernel.profiling.architecture import Occupancy
from mctskernel.profiling.sass import Pipe


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
class Chain:
    """One warp's path through the kernel as its scoreboards see it, in cycles.

    `cycles` is the whole; the others are the parts of it spent waiting for global memory, for shared memory
    and at barriers.
    """

    cycles: float
    global_memory: float = 0.0
    shared_memory: float = 0.0
    barriers: float = 0.0


@dataclass(frozen=True)
class KernelWork:
    """One launch. Totals are over the whole grid, and instructions are warp instructions.

    Sectors are 32 bytes. `l2_*` is what passes between L1 and L2, `dram_*` between L2 and DRAM, and
    `unique_bytes` what a cache without limits would move. `same_address_lanes` are the lanes of atomics on
    the busiest address; `active_lanes` is the mean fraction of lanes at work. `barriers` is per warp.
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
    l2_read_sectors: float = 0.0
    l2_write_sectors: float = 0.0
    dram_read_bytes: float = 0.0
    dram_write_bytes: float = 0.0
    unique_bytes: float = 0.0
    atomic_lanes: float = 0.0
    same_address_lanes: float = 0.0
    barriers: float = 0.0
    spill_bytes: int = 0
    spill_wavefronts: float = 0.0
    spill_l2_sectors: float = 0.0
    active_lanes: float = 1.0
    accesses: tuple[AccessPattern, ...] = field(default=())

    @property
    def warps(self) -> int:
        """Warps in a block."""
        return -(-self.threads // 32)

    @property
    def total_instructions(self) -> float:
        """Warp instructions of all pipes."""
        return sum(self.instructions.values())
