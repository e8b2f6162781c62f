"""Device memory: buffers at aligned addresses with unmapped gaps, and byte-exact records of what was written."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import Any

import numpy as np

SHARED_WINDOW = np.uint64(1 << 40)
LOCAL_WINDOW = np.uint64(2 << 40)
_GLOBAL_BASE = 0x7F00_0000_0000
_ALIGNMENT = 256
_GAP = 64 << 20
UNITS = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Storage:
    """Bytes with views as larger units, and which of the bytes hold a value (`valid`, None when all do)."""

    def __init__(self, data: Bytes, valid: Bytes | None) -> None:
        self.data = data
        self.valid = valid
        self._views: dict[int, np.ndarray] = {}
        self._valid_views: dict[int, np.ndarray] = {}

    def set_valid(self, valid: Bytes) -> None:
        """Say anew which bytes hold a value."""
        self.valid = valid
        self._valid_views = {}

    def view(self, size: int) -> np.ndarray:
        if size not in self._views:
            self._views[size] = self.data[: self.data.size // size * size].view(UNITS[size])
        return self._views[size]

    def valid_view(self, size: int) -> np.ndarray:
        if size not in self._valid_views:
            assert self.valid is not None  # noqa: S101
            self._valid_views[size] = self.valid[: self.valid.size // size * size].view(UNITS[size])
        return self._valid_views[size]


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
        return np.ones(buffer.size, bool) if buffer.valid is None else buffer.valid != 0

    def find(self, low: int, high: int) -> Buffer | None:
        """The buffer that contains [low, high)."""
        i = bisect.bisect_right(self._bases, low) - 1
        if i < 0:
            return None
        buffer = self._buffers[i]
        return buffer if high <= buffer.base + buffer.size else None

    def nearest(self, address: int) -> Buffer | None:
        """The buffer whose range is closest to an address."""
        distance = [max(b.base - address, address - b.base - b.size + 1, 0) for b in self._buffers]
        return self._buffers[int(np.argmin(distance))] if distance else None
