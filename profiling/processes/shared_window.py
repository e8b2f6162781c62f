"""Memory that two processes share, behind a file descriptor that a child inherits."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os

import numpy as np

from mctskernel.core.dtypes import DType
from mctskernel.core.task import Array

ALIGNMENT = 4096


class SharedWindow:
    """Shared memory that grows at its end; reserved places stay. A child opens the same descriptor with `fd=`.

    It is sealed against shrinking: reading memory that a child had cut off would end this process. With `nbytes` it
    has that size for good, for a child that runs hostile code.
    """

    def __init__(self, fd: int | None = None, *, nbytes: int = 0) -> None:
        self.fd = _create(nbytes) if fd is None else fd
        self._end = 0
        self._map: mmap.mmap | None = None
        self._mapped(nbytes)

    def reserve(self, nbytes: int) -> int:
        """Reserve bytes; returns their offset."""
        offset = self._end
        self._end += -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        if os.fstat(self.fd).st_size < self._end:
            os.ftruncate(self.fd, self._end)
        return offset

    def put(self, array: Array) -> int:
        """Reserve room for an array and copy it there; returns its offset."""
        offset = self.reserve(array.nbytes)
        self.bytes_at(offset, array.nbytes)[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return offset

    def clear(self, *, discard: bool = False) -> None:
        """Reserve from the beginning again; `discard` gives the memory back until it is written again."""
        self._end = 0
        if discard and self._map is not None:
            with contextlib.suppress(OSError):  # not every sandbox can
                self._map.madvise(mmap.MADV_REMOVE)

    def bytes_at(self, offset: int, nbytes: int) -> Array:
        """A view of some bytes. Raises ValueError for bytes outside of the window."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self._mapped(offset + nbytes):
            raise ValueError(f"The shared window has no bytes {offset} to {offset + nbytes}.")
        assert self._map is not None  # noqa: S101 - `_mapped` saw to it
        return np.frombuffer(self._map, np.uint8, nbytes, offset)

    def array_at(self, offset: int, dtype: DType, extents: tuple[int, ...]) -> Array:
        """A view of an array."""
        count = int(np.prod(extents, dtype=np.int64))
        return self.bytes_at(offset, count * dtype.itemsize).view(dtype).reshape(extents)

    def close(self) -> None:
        """Free the memory once no view of it is left. May be called again."""
        self._map = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _mapped(self, end: int) -> int:
        """The mapped size, at least `end` where the window is that large. Older views stay valid."""
        if self._map is None or len(self._map) < end:
            size = os.fstat(self.fd).st_size
            if size >= end and size:
                self._map = mmap.mmap(self.fd, size)
        return len(self._map) if self._map is not None else 0


def _create(nbytes: int) -> int:
    fd = os.memfd_create("mctskernel-window", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, nbytes)
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals | fcntl.F_SEAL_GROW if nbytes else seals)
    return fd
