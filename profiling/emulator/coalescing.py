"""What one execution of a memory instruction adds to the counts: sectors, lines and shared-memory wavefronts."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mctskernel.profiling.emulator.arithmetic import V
from mctskernel.profiling.emulator.codegen import Access
from mctskernel.profiling.emulator.lanes import Lanes, rows
from mctskernel.profiling.emulator.memory import window


@dataclass(frozen=True, slots=True, eq=False)
class Once:
    """What one execution of an access adds; `sectors` are relative to the line of the first lane, for global memory.

    `numbers` are those of `AccessCounts`, in their order: requests, lanes, sectors, wavefronts, ideal wavefronts,
    lanes of the same address, and lines.
    """

    space: str
    numbers: tuple[int, ...] = (0,) * 7
    sectors: np.ndarray | None = None


_PATTERNS = 4096
_Last = tuple[Lanes, str, int, bytes, Once]


@dataclass
class Patterns:
    """Measures requests; those that differ only by a uniform distance are measured once.

    Shared-memory conflicts don't change when all addresses move by whole words, nor do sectors when they move by
    whole lines, so a request is known by its lanes and its addresses relative to the first.
    """

    known: dict[tuple[object, ...], Once] = field(default_factory=dict)
    shapes: dict[int, tuple[V, int, bytes]] = field(default_factory=dict)
    # What an access did last: the same lanes at the same distances add the same.
    last: dict[Access, _Last] = field(default_factory=dict)

    def shape(self, address: V) -> tuple[int, bytes]:
        """The first address and the others relative to it; instructions often share an address array."""
        if address.ndim == 0:
            return int(address), b""
        known = self.shapes.get(id(address))
        if known is not None and known[0] is address:
            return known[1:]
        if len(self.shapes) > 64:
            self.shapes.clear()
        found = (int(address[0]), (address - address[0]).tobytes())
        self.shapes[id(address)] = (address, *found)
        return found

    def measure(self, access: Access, g: Lanes, address: V, mask: V | None) -> tuple[Once, int]:
        """What a request adds, and the sector number that its sectors are counted from."""
        if mask is not None:
            chosen = np.flatnonzero(mask)
            if not len(chosen):
                return self.known.setdefault((access.space,), Once(access.space)), 0
            if len(chosen) < g.n:
                g = g.subset(chosen)
                address = address if address.ndim == 0 else address[chosen]
        first, relative = self.shape(address)
        first += access.offset
        space, shift = (access.space, 0) if access.space != "generic" else window(first)
        first -= shift
        line, place = divmod(first, 4 if space == "shared" else 128)
        last = self.last.get(access)
        if last is not None and last[3] == relative:
            if last[0] is g and last[1] == space and last[2] == place:
                return last[4], line << 2
            relative = last[3]  # whose hash is known
        once = self._known(access, g, address, space, relative, place)
        self.last[access] = (g, space, place, relative, once)
        return once, line << 2

    def _known(  # noqa: PLR0917 - what a request is known by
        self, access: Access, g: Lanes, address: V, space: str, relative: bytes, place: int
    ) -> Once:
        atomic = access.kind in ("atomic", "reduction")
        key = (g.cached("slots", g.slots.tobytes), relative, access.bytes, space, atomic, place)
        once = self.known.get(key)
        if once is None:
            signed = (
                np.broadcast_to(address, g.n)
                .view("i8" if address.dtype.itemsize == 8 else "u4")
                .astype(np.int64)
            )
            once = _measure(space, access.bytes, g, signed - signed[0] + place, atomic=atomic)
            if len(self.known) > _PATTERNS:
                self.known.clear()
            self.known[key] = once
        return once


def _measure(space: str, size: int, g: Lanes, addresses: np.ndarray, *, atomic: bool) -> Once:
    warps = len(g.warp_starts)
    if space == "local":
        return Once(space, (warps, g.n, 0, 0, 0, 0, 0))
    low = int(addresses.min())
    lift = -(low // 128) * 128 if low < 0 else 0
    table = rows(g, addresses + lift, np.int64(-1))
    conflict = same_address_lanes(table) if atomic else 0
    if space == "shared":
        return Once(space, (warps, g.n, 0, *wavefronts(table, size), conflict, 0))
    sectors = sectors_by_warp(table) - (lift >> 5)
    return Once(space, (warps, g.n, len(sectors), 0, 0, conflict, lines(table)), sectors)


SECTOR_SHIFT = 5
LINE_SHIFT = 7
_BANKS = 32
_ABSENT = -1


def _fresh(table: np.ndarray) -> np.ndarray:
    """Where sorted rows begin another value."""
    fresh: np.ndarray = np.empty(table.shape, bool)
    np.not_equal(table[:, 1:], table[:, :-1], out=fresh[:, 1:])
    fresh[:, 0] = True
    return fresh


def sectors_by_warp(addresses: np.ndarray) -> np.ndarray:
    """Sectors that each request touches, ascending by warp; `addresses` (warps, 32) in bytes, negative if inactive."""
    table = np.sort(addresses >> SECTOR_SHIFT, axis=1)
    fresh = _fresh(table)
    if table[:, 0].min() < 0:
        fresh &= table >= 0
    found: np.ndarray = table[fresh]
    return found


def lines(addresses: np.ndarray) -> int:
    """Each request's lines of 128 bytes, counted; `addresses` (warps, 32) in bytes, negative if inactive."""
    table = np.sort(addresses >> LINE_SHIFT, axis=1)
    fresh = _fresh(table)
    return int(np.count_nonzero(fresh & (table >= 0)))


def wavefronts(addresses: np.ndarray, size: int) -> tuple[int, int]:
    """Shared-memory wavefronts of the requests, and how many there would be without bank conflicts.

    Accesses of up to 8 bytes are served by warp, 16 bytes by half warp, each in as many wavefronts as the busiest bank
    has distinct words: lanes that read the same word share it. `addresses` is (warps, 32), negative for inactive lanes.
    """
    words = max(size // 4, 1)
    parts = addresses.reshape(-1, 16) if words > 2 else addresses
    present = (parts >= 0).any(axis=1)
    if not present.all():
        parts = parts[present]
    if not len(parts):
        return 0, 0
    table = parts >> 2
    if words > 1:
        table = np.where(parts[:, :, None] < 0, _ABSENT, table[:, :, None] + np.arange(words)).reshape(
            len(parts), -1
        )
    table = np.sort(table, axis=1)
    fresh = _fresh(table)
    fresh &= table >= 0
    row = np.broadcast_to(np.arange(len(table))[:, None] * _BANKS, table.shape)[fresh]
    degree = np.bincount(row + (table[fresh] & (_BANKS - 1)), minlength=len(table) * _BANKS)
    return int(degree.reshape(-1, _BANKS).max(axis=1).sum()), int((-(-fresh.sum(axis=1) // _BANKS)).sum())


def same_address_lanes(addresses: np.ndarray) -> int:
    """Sum over requests of the largest number of lanes that share one address (how atomics serialise)."""
    table = np.sort(addresses, axis=1)
    total = 0
    for row in table:
        active = row[row >= 0]
        if len(active):
            total += int(np.unique(active, return_counts=True)[1].max())
    return total
