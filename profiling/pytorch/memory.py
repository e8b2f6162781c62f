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
from typing import Protocol

import numpy as np

from mctskernel.core.task import Array
from mctskernel.profiling.pytorch.structures import Slot, arrays, places
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


@dataclass(frozen=True)
class Left:
    """What a call left behind: the bytes of outputs and inputs.

    `settled` says that the outputs are as they were when the clock stopped.
    """

    outputs: Array
    inputs: Array
    settled: bool


class Memory(Protocol):
    """Where the inputs of a host's calls come from and its outputs go."""

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What the host maps once and for all: its outputs, and on a GPU its inputs in each of two turns."""
        ...

    @property
    def sizes(self) -> tuple[int, ...]:
        """Their sizes in bytes, as they are mapped."""
        ...

    @property
    def turn(self) -> int:
        """Which of the mapped memories holds the inputs that are prepared."""
        ...

    def prepare(self, content: Array, rng: np.random.Generator) -> None:
        """Before the clock runs: poison the outputs, and get the inputs ready where the host doesn't see them."""
        ...

    def lend(self) -> tuple[int, ...]:
        """While the clock runs, before the word go: let the host have the inputs. Descriptors that go with it."""
        ...

    def probe(self) -> None:
        """While the clock runs, when the host says that it is done: secure what is there."""
        ...

    def collect(self) -> Left:
        """After the clock has stopped."""
        ...

    def poison(self) -> None:
        """Overwrite every output, so that what isn't written again is seen."""
        ...

    def outputs(self) -> Array:
        """The outputs as they are now."""
        ...

    def close(self) -> None:
        """Give it back."""
        ...


class HostMemory:
    """Memory of this machine. A few elements that nobody can guess are read at the moment when the clock stops."""

    def __init__(self, outputs: Sequence[Slot]) -> None:
        self._window = new_window(places(outputs)[1])
        self._poison = poisoned(outputs)
        self._arrays = [each.reshape(-1) for each in arrays(self._window.bytes, outputs)]
        self._inputs: Window | None = None
        self._chosen: list[Array] = []
        self._probed: list[Array] = []

    @property
    def descriptors(self) -> tuple[int, ...]:
        return (self._window.descriptor,)

    @property
    def sizes(self) -> tuple[int, ...]:
        return (self._window.bytes.nbytes,)

    @property
    def turn(self) -> int:
        return 0

    def prepare(self, content: Array, rng: np.random.Generator) -> None:
        self._drop_inputs()
        self._inputs = lent(content)
        self.poison()
        self._chosen = [rng.integers(0, max(each.size, 1), min(each.size, PROBES)) for each in self._arrays]

    def lend(self) -> tuple[int, ...]:
        return (self._inputs.descriptor,) if self._inputs is not None else ()

    def probe(self) -> None:
        self._probed = [each[chosen] for each, chosen in zip(self._arrays, self._chosen, strict=True)]

    def collect(self) -> Left:
        taken, inputs = self.outputs(), self._drop_inputs()
        settled = all(
            np.array_equal(before.view(np.uint8), each[chosen].view(np.uint8))
            for before, each, chosen in zip(self._probed, self._arrays, self._chosen, strict=True)
        )
        return Left(taken, inputs, settled)

    def poison(self) -> None:
        self._window.bytes[:] = self._poison

    def outputs(self) -> Array:
        return self._window.bytes.copy()

    def close(self) -> None:
        self._drop_inputs()
        self._window.close()

    def _drop_inputs(self) -> Array:
        """Give back the descriptor of a call's inputs, which may have ended badly; their bytes."""
        inputs, self._inputs = self._inputs, None
        if inputs is None:
            return np.empty(0, np.uint8)
        inputs.close()
        return inputs.bytes


def poisoned(tensors: Sequence[Slot]) -> Array:
    """The bytes of a window whose tensors nobody has written."""
    content = np.full(places(tensors)[1], 0xCB, np.uint8)
    for view, slot in zip(arrays(content, tensors), tensors, strict=True):
        if slot.numpy.kind in "biufV":
            view[...] = poison(slot.dtype, slot.shape)
    return content
