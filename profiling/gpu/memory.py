"""Buffers on the GPU that a candidate runs on: between guards, and put back to what they were before every run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np

from mctskernel.profiling.gpu.cuda_driver import DeviceBuffer, copy_on_device, fill_words, read_rows
from mctskernel.profiling.gpu.protocol import Read, ScratchPlace, TensorPlace
from mctskernel.profiling.processes.shared_window import SharedWindow

GUARD_BYTES = 4096
GUARD_WORD = 0xA5A5A5A5
SCRATCH_POISON = 0xCBCBCBCB
"""What a scratch buffer holds before its kernel has written it."""

_BYTES = np.dtype(np.uint8)


class GuardedBuffer:
    """A buffer between two guards, whose bytes tell whether anything was written beyond its ends.

    The guard behind begins with the next whole 32-bit word.
    """

    def __init__(self, name: str, nbytes: int) -> None:
        self.name = name
        self.nbytes = nbytes
        self._words = -(-nbytes // 4)
        self._whole = DeviceBuffer(2 * GUARD_BYTES + 4 * self._words)
        self.address = self._whole.address + GUARD_BYTES
        self._whole.fill(GUARD_WORD)

    def fill(self, word: int) -> None:
        """Fill with a 32-bit pattern, in stream order."""
        fill_words(self.address, word, self._words)

    def overrun(self) -> str:
        """A sentence about a guard that was written, if one was, and the guards anew. Waits for what was launched."""
        before = self._whole.read(_BYTES, GUARD_BYTES)
        behind = self._whole.read(_BYTES, GUARD_BYTES, GUARD_BYTES + 4 * self._words)
        for where, distances in (
            ("before", GUARD_BYTES - _written(before)),
            ("behind", 1 + _written(behind)),
        ):
            if len(distances):
                fill_words(self._whole.address, GUARD_WORD, GUARD_BYTES // 4)
                fill_words(self.address + 4 * self._words, GUARD_WORD, GUARD_BYTES // 4)
                return f"it writes {distances.min()} bytes {where} the buffer '{self.name}' of {self.nbytes} bytes."
        return ""

    def free(self) -> None:
        """Give the memory back."""
        self._whole.free()


def _written(guard: np.ndarray) -> np.ndarray:
    return np.flatnonzero(guard != GUARD_WORD & 0xFF)


@dataclass(frozen=True)
class Tensor:
    """A tensor of an arena, and what it holds before a run: a copy of the input's bytes, or a pattern."""

    buffer: GuardedBuffer
    pristine: DeviceBuffer | None
    poison: int

    def restore(self) -> None:
        """Bring it back to what it holds before a run, in stream order."""
        if self.pristine is None:
            self.buffer.fill(self.poison)
        else:
            copy_on_device(self.buffer.address, self.pristine.address, self.buffer.nbytes)


@dataclass(frozen=True)
class Arena:
    """The tensors at one shape, kept on the GPU for the process's life."""

    tensors: Mapping[str, Tensor]

    def restore(self) -> None:
        """Inputs fresh and outputs poisoned, in stream order."""
        for tensor in self.tensors.values():
            tensor.restore()

    def poison_outputs(self) -> None:
        """Outputs poisoned, in stream order."""
        for tensor in self.tensors.values():
            if tensor.pristine is None:
                tensor.restore()

    def overrun(self) -> str:
        """A sentence about the first buffer that was written beyond its ends."""
        return next((found for each in self.tensors.values() if (found := each.buffer.overrun())), "")

    def fetch(self, read: Read, window: SharedWindow) -> None:
        """Copy some bytes of a tensor to the window. Waits for everything launched before."""
        buffer = self.tensors[read.tensor].buffer
        if read.start < 0 or read.start + (read.rows - 1) * read.pitch + read.width > buffer.nbytes:
            raise ValueError(f"'{read.tensor}' has no such bytes: {read}.")
        target = window.bytes_at(read.offset, read.rows * read.width)
        read_rows(target, buffer.address + read.start, read.rows, read.width, read.pitch)


def place(tensors: Iterable[TensorPlace], window: SharedWindow) -> Arena:
    """Put tensors on the GPU. Raises CudaError when there is no room."""
    placed: dict[str, Tensor] = {}
    for each in tensors:
        pristine = None
        if each.offset is not None:
            pristine = DeviceBuffer(each.nbytes)
            pristine.write(window.bytes_at(each.offset, each.nbytes))
        placed[each.name] = Tensor(GuardedBuffer(each.name, each.nbytes), pristine, each.poison)
        placed[each.name].restore()
    return Arena(placed)


@contextmanager
def scratch_buffers(places: Iterable[ScratchPlace]) -> Iterator[dict[str, GuardedBuffer]]:
    """Scratch buffers by name, for a while."""
    with ExitStack() as stack:
        buffers: dict[str, GuardedBuffer] = {}
        for each in places:
            buffers[each.name] = GuardedBuffer(each.name, each.nbytes)
            stack.callback(buffers[each.name].free)
        yield buffers
