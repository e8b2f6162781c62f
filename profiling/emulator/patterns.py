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


@dataclass(frozen=True, slots=True)
class Once:
    """What one execution of an access adds; kept while its address array stays the same."""

    requests: int
    lanes: int
    space: str
    sectors: np.ndarray | None = None
    wavefronts: int = 0
    ideal_wavefronts: int = 0
    same_address_lanes: int = 0
    lines: int = 0

    def moved(self, sectors: int) -> Once:
        """The same access so many sectors further on."""
        assert self.sectors is not None  # noqa: S101 - only global accesses are moved
        return Once(
            self.requests,
            self.lanes,
            self.space,
            self.sectors + sectors,
            self.wavefronts,
            self.ideal_wavefronts,
            self.same_address_lanes,
            self.lines,
        )


_PATTERNS = 4096


@dataclass
class Patterns:
    """Measures requests; those that differ only by a uniform distance are measured once.

    Shared-memory conflicts don't change when all addresses move by whole words, nor do sectors when they move by
    whole lines, so a request is known by its lanes and its addresses relative to the first.
    """

    known: dict[tuple[object, ...], Once] = field(default_factory=dict)
    shapes: dict[int, tuple[V, int, bytes]] = field(default_factory=dict)

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

    def measure(self, access: Access, g: Lanes, address: V, mask: V | None) -> Once:
        if mask is not None:
            chosen = np.flatnonzero(mask)
            if not len(chosen):
                return Once(0, 0, access.space)
            g = g.subset(chosen)
            address = address if address.ndim == 0 else address[chosen]
        first, relative = self.shape(address)
        first += access.offset
        space, shift = (access.space, 0) if access.space != "generic" else window(first)
        first -= shift
        grain = 4 if space == "shared" else 128
        atomic = access.kind in ("atomic", "reduction")
        lanes = g.cached("slots", g.slots.tobytes)
        key = (lanes, relative, access.bytes, space, atomic, first % grain)
        once = self.known.get(key)
        if once is None:
            signed = (
                np.broadcast_to(address, g.n)
                .view("i8" if address.dtype.itemsize == 8 else "u4")
                .astype(np.int64)
            )
            table = signed - signed[0] + first % grain
            once = _measure(space, access.bytes, g, table, atomic=atomic)
            if len(self.known) > _PATTERNS:
                self.known.clear()
            self.known[key] = once
        if once.sectors is None:
            return once
        return once.moved(first // grain << 2)


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
