"""The cases that candidates are judged on, as tensors on a GPU: what to place, what to fetch, what is right.

An arena is one case's tensors. Its inputs lie in the shared window for as long as the search lives, so that a GPU
process that replaces another one finds them there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from mctskernel.core.dtypes import numpy_dtype
from mctskernel.core.evaluation import Check
from mctskernel.core.task import Array, Shape, Task, Tensor
from mctskernel.profiling.gpu.protocol import Place, Read, TensorPlace
from mctskernel.profiling.processes.shared_window import SharedWindow
from mctskernel.profiling.sampling import Sample, draw_sample, whole
from mctskernel.profiling.verify import draw_cases, judge, poison_word


@dataclass(frozen=True)
class Fetch:
    """Where a fetched part of a tensor lies in the window, and its extents there."""

    tensor: str
    read: Read
    extents: tuple[int, ...]


@dataclass(frozen=True)
class Arena:
    """One case on the GPU."""

    index: int
    task: Task
    shape: Shape
    sample: Sample
    place: Place
    fetches: tuple[Fetch, ...]
    window: SharedWindow

    @property
    def reads(self) -> tuple[Read, ...]:
        """What to fetch after a run."""
        return tuple(fetch.read for fetch in self.fetches)

    def verdict(self) -> Check:
        """Whether what was fetched is right, and the inputs untouched."""
        inputs = {tensor.name: self._fetched(tensor) for tensor in self.task.inputs}
        return judge(self.sample.case, self.outputs(), inputs)

    def outputs(self) -> dict[str, Array]:
        """What was fetched of the outputs, a copy."""
        return {tensor.name: self._fetched(tensor).copy() for tensor in self.task.outputs}

    def output_bytes(self) -> bytes:
        """The outputs that were fetched, to be compared bit by bit with those of another run."""
        return b"".join(array.tobytes() for array in self.outputs().values())

    def _fetched(self, tensor: Tensor) -> Array:
        dtype = numpy_dtype(tensor.dtype)
        parts = [
            self.window.array_at(fetch.read.offset, dtype, fetch.extents)
            for fetch in self.fetches
            if fetch.tensor == tensor.name
        ]
        return self.sample.joined(tensor, parts)


@dataclass(frozen=True)
class Arenas:
    """Every case that candidates are verified on, and timed on."""

    verified: tuple[Arena, ...]
    timed: tuple[Arena, ...]

    def __iter__(self) -> Iterator[Arena]:
        yield from (*self.verified, *self.timed)


def draw_arenas(task: Task, seed: int, window: SharedWindow) -> Arenas:
    """The cases of a seed, with their inputs in the window. Raises TaskError."""
    rng = np.random.default_rng(seed)
    drawn: list[Arena] = []

    def keep(inputs: Mapping[str, Array], sample: Sample) -> Arena:
        drawn.append(_arena(len(drawn), task, inputs, sample, window))
        return drawn[-1]

    verified = [keep(case.inputs, whole(case)) for case in draw_cases(task, task.verify_shapes, seed)]
    timed = [keep(*draw_sample(task, shape, seed, rng)) for shape in task.search_shapes]
    return Arenas(tuple(verified), tuple(timed))


def _arena(
    index: int, task: Task, inputs: Mapping[str, Array], sample: Sample, window: SharedWindow
) -> Arena:
    shape = sample.case.shape
    tensors = [
        *(
            TensorPlace(each.name, each.nbytes(shape), offset=window.put(inputs[each.name]))
            for each in task.inputs
        ),
        *(
            TensorPlace(each.name, each.nbytes(shape), poison=poison_word(each.dtype))
            for each in task.outputs
        ),
    ]
    fetches = [
        Fetch(
            tensor.name,
            Read(
                tensor.name,
                part.start,
                part.rows,
                part.width,
                part.pitch,
                window.reserve(part.rows * part.width),
            ),
            part.extents,
        )
        for tensor in (*task.inputs, *task.outputs)
        for part in sample.parts(tensor, shape)
    ]
    return Arena(index, task, shape, sample, Place(index, tuple(tensors)), tuple(fetches), window)
