"""Shuffles, votes, matches and reductions among the lanes of a warp."""

from __future__ import annotations

from typing import Any

import numpy as np

from mctskernel.profiling.emulator.arithmetic import U32, V, select
from mctskernel.profiling.emulator.lanes import WARP, Lanes


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
