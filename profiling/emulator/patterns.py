"""What one execution of a memory instruction adds to the counts, measured once for each pattern of addresses."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mctskernel.profiling.emulator.arithmetic import V
from mctskernel.profiling.emulator.coalescing import lines, same_address_lanes, sectors_by_warp, wavefronts
from mctskernel.profiling.emulator.codegen import Access
from mctskernel.profiling.emulator.lanes import Lanes
from mctskernel.profiling.emulator.resolve import window
from mctskernel.profiling.emulator.warp import rows


@dataclass(frozen=True, slots=True, eq=False)
class Once:
    """What one execution of an access adds; global sectors as far as they lie from the line of the first lane."""

    requests: int
    lanes: int
    space: str
    sectors: np.ndarray | None = None
    wavefronts: int = 0
    ideal_wavefronts: int = 0
    same_address_lanes: int = 0
    lines: int = 0


_PATTERNS = 4096


_Last = tuple[Lanes, str, int, bytes, Once]
"""The request that an access made last: by the same lanes, at the same distances, it adds the same."""


@dataclass
class Patterns:
    """Measures requests; those that differ only by a uniform distance are measured once.

    Shared-memory conflicts don't change when all addresses move by whole words, nor do sectors when they move by
    whole lines, so a request is known by its lanes and its addresses relative to the first.
    """

    known: dict[tuple[object, ...], Once] = field(default_factory=dict)
    shapes: dict[int, tuple[V, int, bytes]] = field(default_factory=dict)
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
                return self.known.setdefault((access.space,), Once(0, 0, access.space)), 0
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
        return Once(warps, g.n, space)
    low = int(addresses.min())
    lift = -(low // 128) * 128 if low < 0 else 0
    table = rows(g, addresses + lift, np.int64(-1))
    conflict = same_address_lanes(table) if atomic else 0
    if space == "shared":
        fronts, ideal = wavefronts(table, size)
        return Once(warps, g.n, space, None, fronts, ideal, conflict)
    return Once(
        warps,
        g.n,
        space,
        sectors_by_warp(table) - (lift >> 5),
        same_address_lanes=conflict,
        lines=lines(table),
    )
