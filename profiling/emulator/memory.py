"""Device memory: buffers at aligned addresses with unmapped gaps, and byte-exact records of what was written."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mctskernel.profiling.emulator.arithmetic import V
from mctskernel.profiling.emulator.codegen import Access
from mctskernel.profiling.emulator.findings import Kind
from mctskernel.profiling.emulator.lanes import Batch, Lanes

SHARED_WINDOW = np.uint64(1 << 40)
LOCAL_WINDOW = np.uint64(2 << 40)
_GLOBAL_BASE = 0x7F00_0000_0000
_ALIGNMENT = 256
_GAP = 64 << 20
UNITS = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Storage:
    """Bytes with views as larger units, and which of the bytes hold a value (`valid`, None when all do)."""

    def __init__(self, data: Bytes, valid: Bytes | None = None) -> None:
        self.data = data
        self.valid = None if valid is None else Storage(valid)
        self._views: dict[int, np.ndarray] = {}

    def view(self, size: int) -> np.ndarray:
        if size not in self._views:
            self._views[size] = self.data[: self.data.size // size * size].view(UNITS[size])
        return self._views[size]

    def write(self, size: int, index: Any, unit: V) -> None:
        """Store units at indices, which hold a value from now on."""
        self.view(size)[index] = unit
        if self.valid is not None:
            self.valid.view(size)[index] = _ALL_SET[size]


_ALL_SET = {size: np.full(size, 255, "u1").view(unit)[0] for size, unit in UNITS.items()}


class Buffer(Storage):
    """A range of global memory; a virtual one has addresses and no bytes."""

    def __init__(
        self, name: str, base: int, size: int, data: Bytes | None, valid: Bytes | None, *, writable: bool
    ) -> None:
        super().__init__(data if data is not None else np.empty(0, "u1"), valid)
        self.name, self.base, self.size, self.writable = name, base, size, writable
        self.virtual = data is None


class GlobalMemory:
    """The buffers of one launch. Nothing lies between them, so an overrun never lands in a neighbour."""

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._buffers: list[Buffer] = []

    def add(
        self,
        name: str,
        contents: np.ndarray | int,
        *,
        initialised: bool | None = None,
        writable: bool = True,
        virtual: bool = False,
    ) -> int:
        """Place a buffer and return its address (256-byte aligned).

        `contents` is an array, copied if the buffer is writable, or a size in bytes. Arrays are initialised and
        sizes aren't unless `initialised` says otherwise. A `virtual` buffer is for counting only: it takes no memory.
        """
        size = contents.nbytes if isinstance(contents, np.ndarray) else int(contents)
        data: Bytes | None = None
        if isinstance(contents, np.ndarray):
            flat = np.ascontiguousarray(contents).reshape(-1).view("u1")
            data = flat.copy() if writable else flat
        elif not virtual:
            data = np.zeros(size, "u1")
        if initialised is None:
            initialised = isinstance(contents, np.ndarray)
        valid = None if initialised or data is None else np.zeros(size, "u1")
        base = _GLOBAL_BASE
        if self._buffers:
            last = self._buffers[-1]
            gap = max(_GAP, last.size)
            base = -(-(last.base + last.size + gap) // _ALIGNMENT) * _ALIGNMENT
        self._bases.append(base)
        self._buffers.append(Buffer(name, base, size, data, valid, writable=writable))
        return base

    def __getitem__(self, name: str) -> Buffer:
        for buffer in self._buffers:
            if buffer.name == name:
                return buffer
        raise KeyError(name)

    def __iter__(self) -> Iterator[Buffer]:
        return iter(self._buffers)

    def array(self, name: str, dtype: Any = "u1") -> np.ndarray:
        """The bytes of a buffer as an array that shares them."""
        return self[name].data.view(dtype)

    def written(self, name: str) -> np.ndarray:
        """Which bytes of a buffer hold a value, as booleans; all of them for an initialised one."""
        buffer = self[name]
        return np.ones(buffer.size, bool) if buffer.valid is None else buffer.valid.data != 0

    def find(self, low: int, high: int) -> Buffer | None:
        i = bisect.bisect_right(self._bases, low) - 1
        if i < 0:
            return None
        buffer = self._buffers[i]
        return buffer if high <= buffer.base + buffer.size else None

    def nearest(self, address: int) -> Buffer | None:
        distance = [max(b.base - address, address - b.base - b.size + 1, 0) for b in self._buffers]
        return self._buffers[int(np.argmin(distance))] if distance else None


_SHARED = int(SHARED_WINDOW)
_LOCAL = int(LOCAL_WINDOW)
_SHIFT = {1: 0, 2: 1, 4: 2, 8: 3, 16: 4}


@dataclass(frozen=True, slots=True)
class Range:
    """A variable of shared or local memory: [start, end) of the space's own addresses."""

    name: str
    start: int
    end: int


@dataclass(slots=True, eq=False)
class Part:
    """Lanes of one access that fall in one storage: `index` in units of the access, `where` None for all lanes."""

    storage: Storage
    space: str
    index: V | int
    where: np.ndarray | None
    checked: bool = False
    granules: np.ndarray | None = None

    def lanes(self, g: Lanes) -> np.ndarray:
        return np.arange(g.n) if self.where is None else self.where

    def slots(self, g: Lanes) -> np.ndarray:
        return g.slots if self.where is None else g.slots[self.where]

    def indices(self, g: Lanes) -> np.ndarray:
        return np.broadcast_to(np.asarray(self.index), g.n if self.where is None else len(self.where))

    def of_lanes(self, v: V) -> V:
        """A value of all lanes for its own."""
        return v if v.ndim == 0 or self.where is None else v[self.where]

    def subset(self, g: Lanes, chosen: np.ndarray) -> Part:
        return Part(self.storage, self.space, self.indices(g)[chosen], self.lanes(g)[chosen])

    def values(self, access: Access) -> V:
        """What its lanes read: (lanes,) or, for vectors, (count, lanes); without the lanes where they share a place."""
        raw = self.storage.view(access.bytes).take(self.index)
        if access.count == 1:
            return raw.view(access.element)
        if raw.ndim == 0:
            return raw.reshape(1).view(access.element)
        return np.ascontiguousarray(raw.view(access.element).reshape(-1, access.count).T)

    def units(self, access: Access, g: Lanes, values: tuple[V, ...]) -> V:
        """The lanes' values as units of the whole access."""
        if access.count == 1:
            return self.of_lanes(values[0])
        table = np.empty((len(self.indices(g)), access.count), access.element)
        for i, value in enumerate(values):
            table[:, i] = self.of_lanes(value)
        return table.view(UNITS[access.bytes])[:, 0]

    def write(self, access: Access, g: Lanes, values: tuple[V, ...]) -> V:
        """Store what its lanes write. Where every lane writes one address any may win on a GPU; here it is the last."""
        unit = self.units(access, g, values)
        one = np.ndim(self.index) == 0 and unit.ndim > 0
        self.storage.write(access.bytes, self.index, unit[-1] if one else unit)
        return unit


def gather(access: Access, g: Lanes, parts: list[Part]) -> V:
    """What the lanes read: (lanes,) or, for vectors, (count, lanes); zero for those in no part."""
    if len(parts) == 1 and parts[0].where is None:
        return parts[0].values(access)
    result = np.zeros((access.count, g.n), access.element)
    for part in parts:
        result[:, slice(None) if part.where is None else part.where] = part.values(access)
    return result[0] if access.count == 1 else result


Complaint = Callable[[Kind, Access, Lanes, int, int, str], None]


class Resolver:
    """Resolves the accesses of one launch; repeated ones are recognised by the identity of their address array."""

    def __init__(
        self, memory: GlobalMemory, shared: list[Range], local: list[Range], complain: Complaint
    ) -> None:
        self.memory = memory
        self.shared_ranges = shared
        self.local_ranges = local
        self.local_stride = -(-max((r.end for r in local), default=0) // 16) * 16
        self.complain = complain
        self._recent: dict[int, tuple[V, V | None, Lanes, list[Part]]] = {}
        self._spans: dict[int, tuple[V, int, int, int]] = {}

    def start(self, batch: Batch) -> None:
        """Fresh, uninitialised shared and local memory for a batch."""
        self.batch = batch
        self._recent.clear()
        self._spans.clear()
        size = batch.count * batch.shared_stride
        self.shared = Storage(np.zeros(size, "u1"), np.zeros(size, "u1"))
        size = batch.slots * self.local_stride
        self.local = Storage(np.zeros(size, "u1"), np.zeros(size, "u1"))

    def parts(self, access: Access, g: Lanes, address: V, mask: V | None) -> list[Part]:
        """Where the active lanes' bytes are; lanes with a finding are left out."""
        if mask is not None and mask.ndim == 0:
            if not mask:
                return []
            mask = None
        recent = self._recent.get(access.ordinal)
        if recent is not None and recent[0] is address and recent[1] is mask and recent[2] is g:
            return recent[3]
        parts = None if mask is not None else self._uniform(access, g, address)
        if parts is None:
            parts = self._each(access, g, address, mask)
        self._recent[access.ordinal] = (address, mask, g, parts)
        return parts

    def span(self, address: V) -> tuple[int, int, int]:
        """Lowest and highest address, and the union of the low bits."""
        if address.ndim == 0:
            value = int(address)
            return value, value, value & 15
        known = self._spans.get(id(address))
        if known is not None and known[0] is address:
            return known[1:]
        if len(self._spans) > 64:
            self._spans.clear()
        low, high = int(address.min()), int(address.max())
        bits = int(np.bitwise_or.reduce(address)) & 15
        self._spans[id(address)] = (address, low, high, bits)
        return low, high, bits

    def _uniform(self, access: Access, g: Lanes, address: V) -> list[Part] | None:
        """The common case: every lane in one variable, all aligned."""
        size, offset = access.bytes, access.offset
        low, high, bits = self.span(address)
        if (bits | offset) & (size - 1):
            return None
        low, high = low + offset, high + offset + size
        space = access.space
        if space == "generic":
            space, shift = window(low)
            low, high, offset = low - shift, high - shift, offset - shift
        shift = _SHIFT[size]
        if space == "shared":
            if not any(r.start <= low and high <= r.end for r in self.shared_ranges):
                return None
            if address.ndim == 0 and g.batch.count == 1:
                return [Part(self.shared, space, (int(address) + offset) >> shift, None)]
            index = (_signed(address) + offset >> shift) + g.shared_row(size)
            return [Part(self.shared, space, index, None)]
        if space == "local":
            if not any(r.start <= low and high <= r.end for r in self.local_ranges):
                return None
            rows = g.cached(f"local{size}", lambda: g.slots * (self.local_stride // size))
            return [Part(self.local, space, (_signed(address) + offset >> shift) + rows, None)]
        buffer = self.memory.find(low, high)
        if buffer is None or (access.kind not in ("load", "copy") and not buffer.writable):
            return None
        if address.ndim == 0:
            return [Part(buffer, "global", (int(address) + offset - buffer.base) >> shift, None)]
        return [Part(buffer, "global", (_signed(address) + (offset - buffer.base)) >> shift, None)]

    def _each(self, access: Access, g: Lanes, address: V, mask: V | None) -> list[Part]:
        """Lane by lane: masked, mixed, misaligned or out of bounds."""
        where = np.arange(g.n) if mask is None else np.flatnonzero(mask)
        if not len(where):
            return []
        addresses = _signed(np.broadcast_to(address, g.n))[where] + access.offset
        size = access.bytes
        wrong = addresses & (size - 1) != 0
        if wrong.any():
            first = int(np.argmax(wrong))
            self.complain("misaligned", access, g, int(where[first]), int(addresses[first]), "")
            addresses, where = addresses[~wrong], where[~wrong]
        parts: list[Part] = []
        while len(addresses):
            found, inside = self._one(access, g, where, addresses)
            if found is not None:
                parts.append(found)
            addresses, where = addresses[~inside], where[~inside]
        return parts

    def _one(
        self, access: Access, g: Lanes, where: np.ndarray, addresses: np.ndarray
    ) -> tuple[Part | None, np.ndarray]:
        """The storage of the first address, and which of the others share it."""
        first, size = int(addresses[0]), access.bytes
        space, shift = (access.space, 0) if access.space != "generic" else window(first)
        if space in ("shared", "local"):
            ranges = self.shared_ranges if space == "shared" else self.local_ranges
            at = first - shift
            hit = next((r for r in ranges if r.start <= at and at + size <= r.end), None)
            if hit is None:
                self.complain("out_of_bounds", access, g, int(where[0]), at, space)
                return None, np.arange(len(addresses)) == 0 if len(addresses) < 64 else self._outside(
                    ranges, addresses - shift, size
                )
            inside = (addresses - shift >= hit.start) & (addresses - shift + size <= hit.end)
            offsets = addresses[inside] - shift >> _SHIFT[size]
            lanes = where[inside]
            if space == "shared":
                row = g.block_index[lanes] * (self.batch.shared_stride // size)
                return Part(self.shared, space, offsets + row, lanes), inside
            row = g.slots[lanes] * (self.local_stride // size)
            return Part(self.local, space, offsets + row, lanes), inside
        buffer = self.memory.find(first, first + size)
        if buffer is None:
            self.complain("out_of_bounds", access, g, int(where[0]), first, "global")
            near = self.memory.nearest(first)
            low, high = (near.base, near.base + near.size - size) if near else (0, -1)
            outside = (addresses < low) | (addresses > high)
            known = np.zeros(len(addresses), bool)
            for other in self.memory:
                known |= (addresses >= other.base) & (addresses + size <= other.base + other.size)
            return None, outside & ~known if not known[0] else np.arange(len(addresses)) == 0
        inside = (addresses >= buffer.base) & (addresses + size <= buffer.base + buffer.size)
        if access.kind not in ("load", "copy") and not buffer.writable:
            self.complain("write_to_readonly", access, g, int(where[0]), first, buffer.name)
            return None, inside
        return Part(
            buffer, "global", (addresses[inside] - buffer.base) >> _SHIFT[size], where[inside]
        ), inside

    @staticmethod
    def _outside(ranges: list[Range], addresses: np.ndarray, size: int) -> np.ndarray:
        outside = np.ones(len(addresses), bool)
        for r in ranges:
            outside &= ~((addresses >= r.start) & (addresses + size <= r.end))
        return outside

    def owner(self, storage: Storage) -> str:
        return (
            storage.name if isinstance(storage, Buffer) else ("shared" if storage is self.shared else "local")
        )


def window(address: int) -> tuple[str, int]:
    """State space of a generic address and the start of its window."""
    if _LOCAL <= address < 2 * _LOCAL:
        return "local", _LOCAL
    if _SHARED <= address < _LOCAL:
        return "shared", _SHARED
    return "global", 0


def _signed(address: V) -> V:
    """Addresses as signed numbers: one of 32 bits may lie before its space until its offset is added."""
    if address.dtype.itemsize == 8:
        return address.view(np.int64)
    return address.view(np.int32).astype(np.int64)
