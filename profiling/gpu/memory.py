"""Buffers on the GPU that a candidate runs on: between guards, and put back to what they were before every run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

import numpy as np

from mctskernel.core.task import Array
from mctskernel.profiling.gpu.cuda_driver import (
    CudaError,
    DeviceBuffer,
    copy_on_device,
    fill_words,
    read_rows,
)
from mctskernel.profiling.gpu.digests import Segment
from mctskernel.profiling.gpu.protocol import Read, ScratchPlace, TensorPlace
from mctskernel.profiling.processes.shared_window import SharedWindow

GUARD_BYTES = 1 << 16
"""The least on either side of a buffer."""

PAGE_BYTES = 2 << 20
"""What the driver maps at once. A buffer's last guard reaches to the end of its page: no byte is nobody's."""

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
        pages = -(-(2 * GUARD_BYTES + 4 * self._words) // PAGE_BYTES)
        self._whole = DeviceBuffer(pages * PAGE_BYTES)
        self.address = self._whole.address + GUARD_BYTES
        self._whole.fill(GUARD_WORD)

    @property
    def contents(self) -> Segment:
        """Its own bytes."""
        return Segment(self.address, self.nbytes)

    @property
    def guards(self) -> tuple[Segment, Segment]:
        """The bytes before and behind."""
        end, behind = self._whole.address + self._whole.nbytes, self.address + 4 * self._words
        return Segment(self._whole.address, GUARD_BYTES), Segment(behind, end - behind)

    def fill(self, word: int) -> None:
        """Fill with a 32-bit pattern, in stream order."""
        fill_words(self.address, word, self._words)

    def write(self, array: Array) -> None:
        """Copy bytes into it."""
        self._whole.write(array, GUARD_BYTES)

    def overrun(self) -> str:
        """A sentence about a guard that was written, if one was, and the guards anew. Waits for what was launched."""
        before = self._whole.read(_BYTES, GUARD_BYTES)
        start = GUARD_BYTES + 4 * self._words
        behind = self._whole.read(_BYTES, self._whole.nbytes - start, start)
        for where, distances in (
            ("before", GUARD_BYTES - _written(before)),
            ("behind", 1 + _written(behind)),
        ):
            if len(distances):
                fill_words(self._whole.address, GUARD_WORD, GUARD_BYTES // 4)
                fill_words(self._whole.address + start, GUARD_WORD, (self._whole.nbytes - start) // 4)
                return f"it writes {distances.min()} bytes {where} the buffer '{self.name}' of {self.nbytes} bytes."
        return ""

    def free(self) -> None:
        """Give the memory back, with nothing left in it; harmless when the context is lost."""
        with suppress(CudaError):
            self._whole.fill(GUARD_WORD)
        self._whole.free()


def _written(guard: np.ndarray) -> np.ndarray:
    return np.flatnonzero(guard != GUARD_WORD & 0xFF)


@dataclass(frozen=True)
class Tensor:
    """A tensor of an arena, and what it holds before a run: an input's bytes, by variant, or a pattern."""

    buffer: GuardedBuffer
    pristine: Sequence[GuardedBuffer]
    poison: int
    output: bool

    def restore(self, variant: int) -> None:
        """Bring it back to what it holds before a run, in stream order."""
        if self.pristine:
            copy_on_device(self.buffer.address, self.pristine[variant].address, self.buffer.nbytes)
        else:
            self.buffer.fill(self.poison)


@dataclass(frozen=True)
class Arena:
    """The tensors at one shape, kept on the GPU for the process's life."""

    tensors: Mapping[str, Tensor]

    @property
    def variants(self) -> int:
        """How many drawings of its inputs there are."""
        return max((len(tensor.pristine) for tensor in self.tensors.values()), default=0) or 1

    def restore(self, variant: int = 0) -> None:
        """Inputs fresh and outputs poisoned, in stream order."""
        for tensor in self.tensors.values():
            tensor.restore(variant)

    @property
    def outputs(self) -> list[Segment]:
        """What a run is to write."""
        return [each.buffer.contents for each in self.tensors.values() if each.output]

    @property
    def inputs(self) -> list[Segment]:
        """What a run must leave as it is."""
        return [each.buffer.contents for each in self.tensors.values() if not each.output]

    def fresh_inputs(self, variant: int) -> list[Segment]:
        """What `inputs` hold before a run."""
        return [
            each.pristine[variant].contents
            for each in self.tensors.values()
            if each.pristine and not each.output
        ]

    @property
    def guards(self) -> list[Segment]:
        """What lies around the tensors."""
        return [guard for each in self.tensors.values() for guard in each.buffer.guards]

    @property
    def kept(self) -> list[Segment]:
        """What inputs are restored from, and what lies around that."""
        return [
            segment
            for tensor in self.tensors.values()
            for each in tensor.pristine
            for segment in (each.contents, *each.guards)
        ]

    @property
    def everything(self) -> list[Segment]:
        """Every byte."""
        return [*self.inputs, *self.outputs, *self.guards, *self.kept]

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
        pristine = [GuardedBuffer(each.name, each.nbytes) for _ in each.offsets]
        for buffer, offset in zip(pristine, each.offsets, strict=True):
            buffer.write(window.bytes_at(offset, each.nbytes))
        placed[each.name] = Tensor(GuardedBuffer(each.name, each.nbytes), pristine, each.poison, each.output)
    arena = Arena(placed)
    arena.restore()
    return arena


@contextmanager
def scratch_buffers(places: Iterable[ScratchPlace]) -> Iterator[dict[str, GuardedBuffer]]:
    """Scratch buffers by name, for a while."""
    with ExitStack() as stack:
        buffers: dict[str, GuardedBuffer] = {}
        for each in places:
            buffers[each.name] = GuardedBuffer(each.name, each.nbytes)
            stack.callback(buffers[each.name].free)
        yield buffers
