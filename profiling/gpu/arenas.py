"""The cases that candidates are evaluated on, as tensors on a GPU: inputs, what to fetch, expected outputs.

An arena is one case's tensors. Its inputs stay in the shared window as long as the search runs, so that a GPU process
that replaces another one finds them there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from mctskernel.core.dtypes import numpy_dtype
from mctskernel.core.evaluation import Check
from mctskernel.core.task import Array, Shape, Task, Tensor
from mctskernel.profiling.gpu.protocol import Place, Read, TensorPlace
from mctskernel.profiling.input_values import poison_word
from mctskernel.profiling.processes.shared_window import SharedWindow
from mctskernel.profiling.sampling import Sample, draw_sample, whole
from mctskernel.profiling.verify import Case, draw_verification, judge

VARIANTS = 3
"""How many independent inputs a timed arena has: one that is held back, and two to choose among."""

MOST_INPUT_BYTES = 4 << 30
"""Limit of all inputs of an arena together, unless two variants are more already."""


@dataclass(frozen=True)
class Fetch:
    """Where a fetched part of a tensor lies in the window, and its extents there."""

    tensor: str
    read: Read
    extents: tuple[int, ...]


@dataclass(frozen=True)
class Variant:
    """One set of inputs of an arena, the expected outputs, and what to fetch."""

    sample: Sample
    fetches: tuple[Fetch, ...]

    @property
    def reads(self) -> tuple[Read, ...]:
        """What to fetch after a run."""
        return tuple(fetch.read for fetch in self.fetches)


@dataclass(frozen=True)
class Arena:
    """One case on the GPU, or several variants of it that differ in their inputs.

    Digests of every byte tell whether a timed run changed its inputs; those inputs aren't fetched.
    """

    index: int
    task: Task
    shape: Shape
    variants: tuple[Variant, ...]
    place: Place
    window: SharedWindow

    @property
    def case(self) -> Case:
        """The first of its cases; the only one unless it is timed."""
        return self.variants[0].sample.case

    @property
    def reads(self) -> tuple[tuple[Read, ...], ...]:
        """What to fetch after a run, by variant."""
        return tuple(variant.reads for variant in self.variants)

    def verdict(self, variant: int = 0) -> Check:
        """Whether the fetched outputs are right, and the inputs unchanged where they were fetched too."""
        case = self.variants[variant].sample.case
        inputs = {
            tensor.name: self._fetched(tensor, variant)
            for tensor in self.task.inputs
            if tensor.name in case.inputs
        }
        return judge(case, self.outputs(variant), inputs)

    def outputs(self, variant: int = 0) -> dict[str, Array]:
        """A copy of the fetched outputs."""
        return {tensor.name: self._fetched(tensor, variant).copy() for tensor in self.task.outputs}

    def output_bytes(self) -> bytes:
        """The outputs that were fetched, to be compared bit by bit with those of another run."""
        return b"".join(array.tobytes() for array in self.outputs().values())

    def _fetched(self, tensor: Tensor, variant: int) -> Array:
        dtype, drawn = numpy_dtype(tensor.dtype), self.variants[variant]
        parts = [
            self.window.array_at(fetch.read.offset, dtype, fetch.extents)
            for fetch in drawn.fetches
            if fetch.tensor == tensor.name
        ]
        return drawn.sample.joined(tensor, parts)


@dataclass(frozen=True)
class Arenas:
    """Every case that candidates are verified on, and timed on."""

    verified: tuple[Arena, ...]
    timed: tuple[Arena, ...]

    def __iter__(self) -> Iterator[Arena]:
        yield from (*self.verified, *self.timed)


def draw_arenas(task: Task, seed: int, window: SharedWindow) -> Arenas:
    """The cases of a seed, with their inputs in the window. Raises TaskError."""
    _keep_freed_memory()
    drawn: list[Arena] = []

    def keep(variants: Sequence[tuple[Mapping[str, Array], Sample]]) -> Arena:
        drawn.append(_arena(len(drawn), task, variants, window))
        return drawn[-1]

    cases = draw_verification(task, seed)
    verified = [keep([(case.inputs, whole(case))]) for case in cases]
    timed = [keep(_draw_variants(task, shape, seed)) for shape in task.search_shapes]
    return Arenas(tuple(verified), tuple(timed))


def _draw_variants(task: Task, shape: Shape, seed: int) -> list[tuple[Mapping[str, Array], Sample]]:
    """Independent inputs at a shape that is timed, without the inputs in their cases."""
    nbytes = max(1, sum(tensor.nbytes(shape) for tensor in task.inputs))
    count = min(VARIANTS, max(2, MOST_INPUT_BYTES // nbytes))
    others = np.random.SeedSequence([seed, 1]).generate_state(count - 1)

    def draw(each: int) -> tuple[Mapping[str, Array], Sample]:
        inputs, sample = draw_sample(task, shape, each, np.random.default_rng(each), count)
        return inputs, replace(sample, case=replace(sample.case, inputs={}))

    # numpy releases the interpreter's lock while it draws and computes.
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(draw, (seed, *map(int, others))))


def _arena(
    index: int, task: Task, variants: Sequence[tuple[Mapping[str, Array], Sample]], window: SharedWindow
) -> Arena:
    shape = variants[0][1].case.shape
    tensors = [
        *(
            TensorPlace(
                each.name,
                each.nbytes(shape),
                offsets=tuple(window.put(inputs[each.name]) for inputs, _ in variants),
                output=each.name in task.in_place,
            )
            for each in task.inputs
        ),
        *(
            TensorPlace(each.name, each.nbytes(shape), poison=poison_word(each.dtype), output=True)
            for each in task.outputs
            if each.name not in task.in_place
        ),
    ]
    drawn = tuple(Variant(sample, _fetches(task, shape, sample, window)) for _, sample in variants)
    return Arena(index, task, shape, drawn, Place(index, tuple(tensors)), window)


def _fetches(task: Task, shape: Shape, sample: Sample, window: SharedWindow) -> tuple[Fetch, ...]:
    """Where to put the outputs, and those inputs that the case has."""
    inputs = [
        each for each in task.inputs if each.name in sample.case.inputs and each.name not in task.in_place
    ]
    return tuple(
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
        for tensor in (*inputs, *task.outputs)
        for part in sample.parts(tensor, shape)
    )


def _keep_freed_memory() -> None:
    """Have glibc keep up to 256 MiB of freed memory: verification allocates the same arrays again and again.

    Left alone, glibc maps them anew every time, and clearing their pages takes twice as long as the arithmetic.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    trim_threshold, mmap_threshold = -1, -3
    mallopt(trim_threshold, 256 << 20)
    mallopt(mmap_threshold, 32 << 20)
