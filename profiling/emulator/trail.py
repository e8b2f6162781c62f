"""What some blocks of a launch leave in global memory, so that what the others would have left can be told from it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from mctskernel.profiling.emulator.memory import Buffer, GlobalMemory, Storage

UNIT = 4  # bytes


@dataclass
class Trail:
    """By buffer: which units of 4 bytes were stored; and the names of the buffers that were updated atomically."""

    stored: dict[str, np.ndarray] = field(default_factory=dict)
    updated: set[str] = field(default_factory=set)

    @property
    def buffers(self) -> set[str]:
        """The names of the buffers that were changed."""
        return self.updated | self.stored.keys()

    def store(self, storage: Storage, index: np.ndarray | np.generic | int, size: int) -> None:
        """Units of `size` bytes are stored."""
        if not isinstance(storage, Buffer):
            return
        if storage.name not in self.stored:
            self.stored[storage.name] = np.zeros(-(-storage.size // UNIT), bool)
        units = self.stored[storage.name]
        if size <= UNIT:
            units[np.asarray(index) * size // UNIT] = True
        else:
            for part in range(size // UNIT):
                units[np.asarray(index) * (size // UNIT) + part] = True

    def update(self, storage: Storage) -> None:
        """Something in a buffer is updated atomically, which other blocks may do at the same place."""
        if isinstance(storage, Buffer):
            self.updated.add(storage.name)

    def forget_the_rest(self, memory: GlobalMemory, before: Collection[str]) -> None:
        """Take what these blocks haven't stored for unwritten, where the others may have, or have updated it.

        In buffers that nothing had written `before` that is what it seems already.
        """
        for name in self.buffers:
            buffer = memory[name]
            if name not in before and name not in self.updated and buffer.valid is not None:
                continue
            known = np.zeros(buffer.size, "u1")
            if name not in self.updated:
                known = np.repeat(self.stored[name].view("u1") * np.uint8(255), UNIT)[: buffer.size]
            buffer.set_valid(known if buffer.valid is None else known & buffer.valid)
