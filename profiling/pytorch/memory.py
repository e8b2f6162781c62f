"""Where a host's inputs and outputs lie, seen from the referee: windows that are lent, poisoned, probed and copied.

A candidate that watched its memory could begin before the clock does. So the inputs of a call are in a window of
their own, whose descriptor the host gets with the word go and not before.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mctskernel.core.task import Array
from mctskernel.profiling.pytorch.structures import Slot, Structure, arrays, places, slots
from mctskernel.profiling.verify import poison

PROBES = 512
"""How many elements of each output are read at the moment when the clock stops."""


_ONE_SIZE = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@dataclass(frozen=True)
class Window:
    """A descriptor of shared memory, and its bytes."""

    descriptor: int
    bytes: Array

    def close(self) -> None:
        """Give the descriptor back; views keep the memory alive."""
        os.close(self.descriptor)


def new_window(nbytes: int) -> Window:
    """Fresh shared memory, all zeros."""
    descriptor = os.memfd_create("mctskernel-module", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, nbytes)
    # Whoever holds it could shrink it, and reading what is gone would end this process.
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _ONE_SIZE)
    return opened(descriptor)


def opened(descriptor: int) -> Window:
    """Shared memory that somebody else made."""
    size = os.fstat(descriptor).st_size
    return Window(descriptor, np.frombuffer(mmap.mmap(descriptor, size), np.uint8))


def lent(content: Array) -> Window:
    """Fresh shared memory that holds a copy of some bytes."""
    window = new_window(content.nbytes)
    window.bytes[:] = content
    return window


class Outputs:
    """The window in which a host leaves its outputs, for all its calls."""

    def __init__(self, structure: Structure) -> None:
        self.slots = tuple(slots(structure))
        self.window = new_window(places(self.slots)[1])
        self._poison = poisoned(self.slots)
        self._arrays = [each.reshape(-1) for each in arrays(self.window.bytes, self.slots)]

    def poison(self) -> None:
        """Overwrite everything, so that what isn't written again is seen."""
        self.window.bytes[:] = self._poison

    def chosen(self, rng: np.random.Generator) -> tuple[Array, ...]:
        """Elements to probe, which the host can't guess."""
        return tuple(rng.integers(0, max(each.size, 1), min(each.size, PROBES)) for each in self._arrays)

    def probed(self, chosen: Sequence[Array]) -> list[Array]:
        """Those elements as they are now."""
        return [each[indices] for each, indices in zip(self._arrays, chosen, strict=True)]

    def copied(self) -> Array:
        """Every byte as it is now."""
        return self.window.bytes.copy()


def poisoned(tensors: Sequence[Slot]) -> Array:
    """The bytes of a window whose tensors nobody has written."""
    content = np.full(places(tensors)[1], 0xCB, np.uint8)
    for view, slot in zip(arrays(content, tensors), tensors, strict=True):
        if slot.numpy.kind in "biufV":
            view[...] = poison(slot.dtype, slot.shape)
    return content
