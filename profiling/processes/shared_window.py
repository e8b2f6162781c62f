"""Memory that this process and a child both see: how tensors travel between them without being copied twice."""

from __future__ import annotations

import fcntl
import mmap
import os

import numpy as np

from mctskernel.core.dtypes import DType
from mctskernel.core.task import Array

ALIGNMENT = 4096


class SharedWindow:
    """Anonymous shared memory behind a file descriptor, which a child process inherits.

    It grows at its end; what was reserved keeps its place. The child opens the same descriptor with `fd=`. Nobody can
    make it smaller: reading what a child had cut off would end this process.
    """

    def __init__(self, fd: int | None = None) -> None:
        self.fd = _create() if fd is None else fd
        self._end = 0
        self._map: mmap.mmap | None = None

    def reserve(self, nbytes: int) -> int:
        """Room for so many bytes; where it begins."""
        offset = self._end
        self._end += -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        os.ftruncate(self.fd, self._end)
        return offset

    def put(self, array: Array) -> int:
        """Room for an array, with a copy of it; where it begins."""
        offset = self.reserve(array.nbytes)
        self.bytes_at(offset, array.nbytes)[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return offset

    def bytes_at(self, offset: int, nbytes: int) -> Array:
        """A view of some bytes. Raises ValueError for bytes that aren't there."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self._mapped(offset + nbytes):
            raise ValueError(f"The shared window has no bytes {offset} to {offset + nbytes}.")
        assert self._map is not None  # noqa: S101 - `_mapped` saw to it
        return np.frombuffer(self._map, np.uint8, nbytes, offset)

    def array_at(self, offset: int, dtype: DType, extents: tuple[int, ...]) -> Array:
        """A view of an array."""
        count = int(np.prod(extents, dtype=np.int64))
        return self.bytes_at(offset, count * dtype.itemsize).view(dtype).reshape(extents)

    def close(self) -> None:
        """Give the memory back; views that are still around keep it alive."""
        self._map = None
        os.close(self.fd)

    def _mapped(self, end: int) -> int:
        """The mapped size, at least `end` where the window is that large. Older views stay valid."""
        if self._map is None or len(self._map) < end:
            size = os.fstat(self.fd).st_size
            if size >= end and size:
                self._map = mmap.mmap(self.fd, size)
        return len(self._map) if self._map is not None else 0


def _create() -> int:
    fd = os.memfd_create("mctskernel-window", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return fd
