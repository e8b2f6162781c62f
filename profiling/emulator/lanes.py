"""Sets of threads that run together, and the special registers that they read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mctskernel.profiling.emulator.arithmetic import V

WARP = 32


@dataclass(frozen=True)
class Geometry:
    """A launch: grid and block extents (x, y, z) and dynamic shared memory in bytes."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared_bytes: int = 0

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]


class Batch:
    """Blocks that run in lockstep. A slot numbers a thread of the batch: warps never straddle two blocks."""

    def __init__(
        self, geometry: Geometry, blocks: np.ndarray, shared_stride: int, clock: Callable[[], int]
    ) -> None:
        self.geometry = geometry
        self.blocks = blocks
        self.count = len(blocks)
        self.warps_per_block = -(-geometry.threads // WARP)
        self.slots_per_block = self.warps_per_block * WARP
        self.slots = self.count * self.slots_per_block
        self.shared_stride = shared_stride
        self.clock = clock
        thread = np.arange(geometry.threads)
        slots = (np.arange(self.count)[:, None] * self.slots_per_block + thread).reshape(-1)
        self.full = Lanes(self, slots)

    def thread_of(self, slot: int) -> tuple[int, int, int]:
        thread = slot % self.slots_per_block
        x, y, _ = self.geometry.block
        return (thread % x, thread // x % y, thread // (x * y))

    def block_of(self, slot: int) -> tuple[int, int, int]:
        block = int(self.blocks[slot // self.slots_per_block])
        x, y, _ = self.geometry.grid
        return (block % x, block // x % y, block // (x * y))


class PartialWarpError(Exception):
    """An instruction of whole warps was reached by a part of one."""


class Lanes:
    """Threads in step, by ascending slot. Compare by identity: derived arrays are cached on the set."""

    def __init__(self, batch: Batch, slots: np.ndarray) -> None:
        self.batch = batch
        self.slots = slots
        self.n = len(slots)
        self._cache: dict[str, V] = {}

    def cached(self, name: str, make: Callable[[], V]) -> Any:
        if name not in self._cache:
            self._cache[name] = make()
        return self._cache[name]

    @property
    def block_index(self) -> np.ndarray:
        """Which block of the batch each lane belongs to."""
        found: np.ndarray = self.cached("block", lambda: self.slots // self.batch.slots_per_block)
        return found

    @property
    def warps(self) -> np.ndarray:
        """Warp of the batch by lane."""
        found: np.ndarray = self.cached("warp", lambda: self.slots // WARP)
        return found

    @property
    def whole_warps(self) -> bool:
        """Whether the lanes are complete warps, so that arrays reshape to (warps, 32)."""
        return bool(
            self.cached(
                "whole",
                lambda: (
                    self.n % WARP == 0
                    and (
                        self.n == self.batch.slots
                        or bool((self.slots.reshape(-1, WARP)[:, -1] - self.slots[::WARP] == WARP - 1).all())
                    )
                ),
            )
        )

    @property
    def warp_starts(self) -> np.ndarray:
        """Position of the first lane of each warp present."""
        found: np.ndarray = self.cached(
            "starts", lambda: np.flatnonzero(np.r_[True, self.warps[1:] != self.warps[:-1]])
        )
        return found

    @property
    def positions(self) -> np.ndarray:
        """Position by slot of the batch, -1 for threads elsewhere."""

        def make() -> np.ndarray:
            table = np.full(self.batch.slots, -1)
            table[self.slots] = np.arange(self.n)
            return table

        found: np.ndarray = self.cached("positions", make)
        return found

    def shared_row(self, unit: int) -> V:
        """Offset of each lane's block in shared storage, in units of `unit` bytes; 0 where there is one block."""
        if self.batch.count == 1:
            return 0
        return self.cached(f"shared{unit}", lambda: self.block_index * (self.batch.shared_stride // unit))

    def require_whole_warps(self) -> None:
        """Tensor instructions need every lane of a warp; raises `PartialWarpError`."""
        if not self.whole_warps:
            raise PartialWarpError

    def first_lanes(self, count: int) -> np.ndarray:
        """Mask of the first lanes of each warp."""
        found: np.ndarray = self.cached(f"first{count}", lambda: self.slots % WARP < count)
        return found

    def subset(self, chosen: np.ndarray) -> Lanes:
        return Lanes(self.batch, self.slots[chosen])

    def special(self, name: str) -> V:
        if name in _CLOCKS:
            return _CLOCKS[name](self.batch.clock())
        return self.cached("%" + name, lambda: self._special(name))

    def _special(self, name: str) -> V:  # noqa: C901
        base, _, axis = name.partition(".")
        geometry = self.batch.geometry
        u4 = np.uint32
        if base in ("ntid", "nctaid"):
            return u4((geometry.block if base == "ntid" else geometry.grid)["xyz".index(axis)])
        if base in ("tid", "ctaid"):
            x, y, _ = extents = geometry.block if base == "tid" else geometry.grid
            if extents["xyz".index(axis)] == 1:
                return u4(0)
            linear = (
                self.slots % self.batch.slots_per_block
                if base == "tid"
                else self.batch.blocks[self.block_index]
            )
            if base == "ctaid" and self.batch.count == 1:
                linear = self.batch.blocks[0]
            return {"x": linear % x, "y": linear // x % y, "z": linear // (x * y)}[axis].astype(u4)
        lane = (self.slots % WARP).astype(u4)
        if name == "laneid":
            return lane
        if name == "warpid":
            return (self.slots % self.batch.slots_per_block // WARP).astype(u4)
        if base.startswith("lanemask_"):
            bit = u4(1) << lane
            below = bit - u4(1)
            return {"eq": bit, "lt": below, "le": below | bit, "ge": ~below, "gt": ~(below | bit)}[base[9:]]
        constants = {
            "nwarpid": 64,
            "nsmid": _SMS,
            "dynamic_smem_size": geometry.dynamic_shared_bytes,
            "total_smem_size": self.batch.shared_stride,
            "cluster_ctarank": 0,
            "cluster_nctarank": 1,
        }
        if name in constants:
            return u4(constants[name])
        if name == "smid":
            return (self.batch.blocks[self.block_index] % _SMS).astype(u4)
        if name == "gridid":
            return np.uint64(1)
        if base == "cluster_ctaid":
            return u4(0)
        if base == "cluster_nctaid":
            return u4(1)
        return self._special(("ctaid." if base == "clusterid" else "nctaid.") + axis)


_SMS = 132
_CLOCKS: dict[str, Callable[[int], V]] = {
    "clock": lambda t: np.uint32(t & 0xFFFFFFFF),
    "clock_hi": lambda t: np.uint32(t >> 32),
    "clock64": np.uint64,
    "globaltimer": np.uint64,
    "globaltimer_lo": lambda t: np.uint32(t & 0xFFFFFFFF),
    "globaltimer_hi": lambda t: np.uint32(t >> 32),
}
