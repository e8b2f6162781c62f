"""Sets of threads that run together, their special registers, and operations among the lanes of a warp."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mctskernel.profiling.emulator.arithmetic import U32, V, select

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

    @cached_property
    def block_index(self) -> V:
        return self.slots // self.batch.slots_per_block

    @cached_property
    def warps(self) -> V:
        return self.slots // WARP

    @cached_property
    def whole_warps(self) -> bool:
        """Whether the lanes are complete warps, so that arrays reshape to (warps, 32)."""
        if self.n % WARP:
            return False
        ends = self.slots.reshape(-1, WARP)[:, -1]
        return self.n == self.batch.slots or bool((ends - self.slots[::WARP] == WARP - 1).all())

    @cached_property
    def warp_starts(self) -> np.ndarray:
        return np.flatnonzero(np.r_[True, self.warps[1:] != self.warps[:-1]])

    @cached_property
    def positions(self) -> np.ndarray:
        """Position by slot of the batch, -1 for threads elsewhere."""
        table = np.full(self.batch.slots, -1)
        table[self.slots] = np.arange(self.n)
        return table

    def shared_row(self, unit: int) -> V:
        """Offset of each lane's block in shared storage, in units of `unit` bytes; 0 where there is one block."""
        if self.batch.count == 1:
            return 0
        return self.cached(f"shared{unit}", lambda: self.block_index * (self.batch.shared_stride // unit))

    def require_whole_warps(self) -> None:
        """Tensor instructions need every lane of a warp; raises `PartialWarpError`."""
        if not self.whole_warps:
            raise PartialWarpError

    def first_lanes(self, count: int) -> V:
        """Mask of the first lanes of each warp."""
        return self.cached(f"first{count}", lambda: self.slots % WARP < count)

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


@dataclass
class Group:
    """Lanes at one basic block with their register file, which is replaced entry by entry, never in place."""

    lanes: Lanes
    registers: list[V]


def rows(g: Lanes, value: V, fill: Any) -> np.ndarray:
    """A value as (warps, 32), absent lanes filled."""
    if g.whole_warps:
        return np.broadcast_to(value, g.n).reshape(-1, WARP)
    starts = g.warp_starts
    order = np.cumsum(np.r_[0, g.warps[1:] != g.warps[:-1]])
    table = np.full((len(starts), WARP), fill, value.dtype)
    table[order, g.slots % WARP] = value
    return table


def per_lane(g: Lanes, by_warp: np.ndarray) -> np.ndarray:
    """One value a warp (in the order of the warps present) spread over the lanes."""
    counts = np.diff(np.r_[g.warp_starts, g.n])
    return np.repeat(by_warp, counts)


def shuffle(m: Any, g: Lanes, mode: str, value: V, source: V, clamp: V, mask: V, line: int) -> tuple[V, V]:  # noqa: PLR0917
    """`shfl.sync`: (value of the source lane, whether it was in range); PTX ISA, "shfl.sync"."""
    lane = g.cached("lane", lambda: (g.slots % WARP).astype(U32))
    key = f"shfl {mode} {source} {clamp}" if source.ndim == clamp.ndim == 0 else None
    if key is not None:
        origin, inside = g.cached(key, lambda: _source(mode, lane, source, clamp))
    else:
        origin, inside = _source(mode, lane, source, clamp)
    if g.whole_warps:
        if value.ndim == 0:
            return value, inside
        if key is not None:
            index = g.cached("index " + key, lambda: g.slots - g.slots % WARP + origin)
            where = index if g.n == g.batch.slots else g.positions[index]
        else:
            where = g.positions[(g.slots - lane) + origin]
        return value.take(where), inside
    where = g.positions[(g.slots - lane) + origin]
    absent = where < 0
    if absent.any():
        m.absent_source(g, absent & inside, origin, mask, line)
        where = np.where(absent, np.arange(g.n), where)
    return np.broadcast_to(value, g.n).take(where), inside


def _source(mode: str, lane: np.ndarray, b: V, c: V) -> tuple[np.ndarray, np.ndarray]:
    b, segment, limit = b & U32(31), (c >> U32(8)) & U32(31), c & U32(31)
    floor = lane & segment
    ceiling = floor | (limit & ~segment)
    signed = lane.astype(np.int64)
    if mode == "up":
        origin = signed - b
        inside = origin >= ceiling
    elif mode == "down":
        origin = signed + b
        inside = origin <= ceiling
    elif mode == "bfly":
        origin = (lane ^ b).astype(np.int64)
        inside = origin <= ceiling
    else:
        origin = (floor | (b & ~segment)).astype(np.int64)
        inside = origin <= ceiling
    return np.where(inside, origin, signed), np.asarray(inside)


def lane_bits(table: np.ndarray) -> np.ndarray:
    """Rows of 32 truths as 32-bit words."""
    return np.packbits(table, axis=1, bitorder="little").view("<u4").reshape(-1)


def active_mask(g: Lanes) -> V:
    if g.whole_warps:
        return U32(0xFFFFFFFF)
    return g.cached("active", lambda: per_lane(g, lane_bits(rows(g, np.True_, np.False_))))


def vote(g: Lanes, mode: str, condition: V, mask: V) -> V:
    """`vote.sync`: only lanes of the mask take part."""
    full = g.whole_warps
    if condition.ndim == 0 and full and mask.ndim == 0 and mask == U32(0xFFFFFFFF):
        if mode == "ballot":
            return U32(0xFFFFFFFF) if condition else U32(0)
        return condition if mode != "uni" else np.True_
    ballot = lane_bits(rows(g, condition, np.False_))
    active = lane_bits(rows(g, np.True_, np.False_))
    present = per_lane(g, active) & mask
    raised = per_lane(g, ballot) & mask
    if mode == "ballot":
        return raised
    if mode == "all":
        return raised == present
    if mode == "any":
        return raised != 0
    return (raised == present) | (raised == 0)


def match(g: Lanes, mode: str, value: V, mask: V) -> tuple[V, V]:
    """`match.sync`: mask of lanes with this lane's value, and for `all` whether every lane agrees."""
    table = rows(g, value, 0)
    active = rows(g, np.True_, np.False_)
    equal = (table[:, :, None] == table[:, None, :]) & active[:, None, :]
    words = np.packbits(equal, axis=2, bitorder="little").view("<u4").reshape(len(table), WARP)
    found = words[active] & mask
    if mode == "any":
        return found, np.ones(g.n, bool)
    everyone = per_lane(g, lane_bits(active)) & mask
    agree = found == everyone
    return select(agree, everyone, U32(0)), agree


_REDUCTIONS = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def reduce_warp(g: Lanes, operation: str, value: V, mask: V) -> V:
    """`redux.sync`; groups of lanes in a warp may name different masks."""
    ufunc = _REDUCTIONS[operation]
    identity = {"and": -1, "min": np.iinfo(value.dtype).max, "max": np.iinfo(value.dtype).min}.get(
        operation, 0
    )
    if identity == -1:
        identity = np.iinfo(value.dtype).max if value.dtype.kind == "u" else -1
    table = rows(g, value, identity)
    active = rows(g, np.True_, np.False_)
    members = rows(g, np.broadcast_to(mask, g.n) if mask.ndim == 0 else mask, 0)
    inside = (members[:, :, None] >> np.arange(WARP, dtype=U32)) & U32(1)
    kept = np.where((inside != 0) & active[:, None, :], table[:, None, :], value.dtype.type(identity))
    return ufunc.reduce(kept, axis=2, dtype=value.dtype)[active]


@dataclass
class _Barrier:
    """By slot, how often it contributed; by block, the newest round and the tallies of that and the one before.

    Two rounds are enough: nobody contributes to the one after next before all have read this one.
    """

    round: np.ndarray
    newest: np.ndarray
    raised: np.ndarray
    arrived: np.ndarray


class BarrierReductions:
    """The tallies of one batch by barrier number."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self._barriers: dict[int, _Barrier] = {}

    def contribute(self, g: Lanes, number: int, condition: V) -> None:
        """Count the lanes and their conditions for the barrier that they are about to reach."""
        if number not in self._barriers:
            blocks = self.batch.count
            rounds = np.zeros(self.batch.slots, np.int64)
            tallies = [np.zeros((blocks, 2), np.int64) for _ in range(2)]
            self._barriers[number] = _Barrier(rounds, np.zeros(blocks, np.int64), *tallies)
        barrier, block = self._barriers[number], g.block_index
        barrier.round[g.slots] += 1
        now = barrier.round[g.slots]
        first = now > barrier.newest[block]
        opened = block[first]
        barrier.newest[opened] = now[first]
        barrier.raised[opened, now[first] % 2] = 0
        barrier.arrived[opened, now[first] % 2] = 0
        np.add.at(barrier.raised, (block, now % 2), condition)
        np.add.at(barrier.arrived, (block, now % 2), 1)

    def result(self, g: Lanes, number: int, operation: str) -> np.ndarray:
        """What the barrier that the lanes have passed found: popc, and, or."""
        barrier = self._barriers[number]
        at = (g.block_index, barrier.round[g.slots] % 2)
        raised: np.ndarray = barrier.raised[at]
        if operation == "popc":
            return raised.astype(np.uint32)
        return np.asarray(raised == barrier.arrived[at] if operation == "and" else raised > 0)
