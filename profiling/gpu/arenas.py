"""The cases that candidates are evaluated on, as tensors on a GPU: inputs, what to fetch, expected outputs.

An arena is one case's tensors. Its inputs stay in the shared window as long as the search runs, or are drawn on the
GPU, so that a GPU process that replaces another one has the same.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import msgspec
import numpy as np

from mctskernel.core.dtypes import numpy_dtype
from mctskernel.core.evaluation import Check
from mctskernel.core.task import Array, Shape, Task, TaskError, Tensor
from mctskernel.core.tensor_array import TensorArray, on_device
from mctskernel.profiling.gpu.drawing import drawing_of, drawn, drawn_tensor
from mctskernel.profiling.gpu.protocol import Drawing, Place, Read, TensorPlace
from mctskernel.profiling.gpu.reference_device import hold, let_go
from mctskernel.profiling.input_values import Scattered, Values, poison_word
from mctskernel.profiling.processes.shared_window import SharedWindow
from mctskernel.profiling.sampling import Bands, Sample, draw_sample, sample_of, whole
from mctskernel.profiling.verify import (
    Case,
    check_outputs,
    draw_verification,
    scattered_values,
    widened_task,
)

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

    Digests of every byte tell whether a timed run changed its inputs; those inputs aren't fetched. The last
    `checked_only` variants hold what inputs seldom do, which a kernel may take long for.
    """

    index: int
    task: Task
    shape: Shape
    variants: tuple[Variant, ...]
    place: Place
    window: SharedWindow
    checked_only: int = 0

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
        return check_outputs(case, self.outputs(variant), inputs)

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
    timed: tuple[Arena, ...] = ()

    def __iter__(self) -> Iterator[Arena]:
        yield from (*self.verified, *self.timed)


def draw_verified(task: Task, seed: int, window: SharedWindow) -> tuple[Arena, ...]:
    """The cases of a seed that candidates are verified on, with their inputs in the window. Raises TaskError."""
    _keep_freed_memory()
    cases = draw_verification(task, seed)
    return tuple(
        _arena(index, task, [(_Inputs(case.inputs), whole(case))], window) for index, case in enumerate(cases)
    )


def draw_timed(
    task: Task, seed: int, window: SharedWindow, first: int, device: str = ""
) -> tuple[Arena, ...]:
    """The cases that candidates are timed on, numbered from `first`. Raises TaskError.

    The reference of a task that takes tensors is computed on `device`, as PyTorch names it, or on the CPU where it
    fails there. Inputs that the GPU draws aren't in the window.
    """
    return tuple(
        _arena(index, task, _draw_variants(task, shape, seed, device), window, _checked_only(task, shape))
        for index, shape in enumerate(task.search_shapes, first)
    )


def know_products(arenas: Sequence[Arena]) -> None:
    """Compute what products in TF32 may change, where a task allows some: nearly every kernel's check needs it."""
    for noise in (variant.sample.case.noise for arena in arenas for variant in arena.variants):
        if noise is not None:
            noise.of_products  # noqa: B018 - it is remembered


def timed_bytes(task: Task) -> int:
    """About how much of a GPU's memory the timed arenas take: each variant of the inputs, a copy that kernels get, and
    outputs.
    """
    return sum(
        task.compulsory_bytes(shape) + _variants(task, shape) * _input_bytes(task, shape)
        for shape in task.search_shapes
    )


@dataclass(frozen=True)
class _Inputs:
    """One set of inputs by name: their contents, or how the GPU draws them."""

    contents: Mapping[str, Array]
    drawings: Mapping[str, Drawing] = field(default_factory=dict)


def _draw_variants(task: Task, shape: Shape, seed: int, device: str) -> list[tuple[_Inputs, Sample]]:
    """Independent inputs at a shape that is timed, and samples of what they must give."""
    count = _variants(task, shape)
    seeds = (seed, *map(int, np.random.SeedSequence([seed, 1]).generate_state(count - 1)))
    tasks = [task] * count
    special: list[Scattered | None] = [None] * count
    if seldom := _checked_only(task, shape):
        # Numbers that a kernel may not be made for.
        tasks[-1] = widened_task(task, min(task.verify_shapes, key=task.compulsory_bytes), seed)
        kinds = (Values.INFINITY, Values.NAN)[-seldom:]
        special[-seldom:] = (scattered_values(task, shape, each, seed) for each in kinds)

    for computing in dict.fromkeys((device, "")):
        # What fails on the GPU, for want of memory perhaps, may succeed on the CPU.
        with suppress(TaskError) if computing else nullcontext(), ThreadPoolExecutor(count) as pool:
            # numpy releases the interpreter's lock while it draws and computes; on a GPU all of them may not fit.
            each_of = map if computing else pool.map
            return list(each_of(partial(_draw_variant, shape, count, computing), tasks, seeds, special))
    raise AssertionError("what is computed on the CPU is returned or raised")


def _draw_variant(  # noqa: PLR0917 - what all variants share comes first
    shape: Shape, samples: int, device: str, task: Task, seed: int, special: Scattered | None
) -> tuple[_Inputs, Sample]:
    """One set of inputs, to be drawn on the GPU where that can be, and a sample of what they must give.

    numpy draws more slowly by the GPU's generator than by its own, so without a device only slices are drawn there.
    Special values are left out where the reference itself fails.
    """
    if special is not None:
        with suppress(TaskError):
            inputs, sample = _draw_sample(shape, samples, device, task, seed, special)
            if check_outputs(sample.case, sample.case.plain).passed:
                return inputs, sample
    return _draw_sample(shape, samples, device, task, seed, None)


def _draw_sample(  # noqa: PLR0917 - as above
    shape: Shape, samples: int, device: str, task: Task, seed: int, special: Scattered | None
) -> tuple[_Inputs, Sample]:
    rng = np.random.default_rng(seed)
    found = {tensor.name: drawing_of(tensor, shape, seed) for tensor in task.inputs}
    drawings = {name: drawing for name, drawing in found.items() if drawing is not None}
    if special is not None and special.name in drawings:
        drawings[special.name] = msgspec.structs.replace(
            drawings[special.name], special=special.value, every=special.every, first=special.first
        )
    if task.make_inputs is not None or len(drawings) < len(found) or not (device or task.independent):

        def put(array: Array) -> Array:
            if device:
                hold()
            return on_device(array, device)

        let_go()
        inputs, sample = draw_sample(task, shape, seed, rng, samples=samples, put=put, special=special)
        return _Inputs(inputs), sample

    def take(tensor: Tensor, bands: Bands | None) -> Array:
        extents, drawing = tensor.extents(shape), drawings[tensor.name]
        if device:
            hold()
        places: Any = range(math.prod(extents))
        if bands is not None:
            places = bands.places(extents, device)
            extents = tuple(places.shape)
        if not device:
            return drawn(drawing, np.asarray(places)).reshape(extents)
        return cast("Array", TensorArray(drawn_tensor(drawing, places, device).reshape(extents)))

    sample = sample_of(task, shape, seed, rng, take, samples=samples, again=take, special=special)
    return _Inputs({}, drawings), sample


def _variants(task: Task, shape: Shape) -> int:
    return min(VARIANTS, max(2, MOST_INPUT_BYTES // max(1, _input_bytes(task, shape))))


def _checked_only(task: Task, shape: Shape) -> int:
    return min(2, _variants(task, shape) - 1) if task.thorough and task.verify_shapes else 0


def _input_bytes(task: Task, shape: Shape) -> int:
    return sum(tensor.nbytes(shape) for tensor in task.inputs)


def _arena(
    index: int,
    task: Task,
    variants: Sequence[tuple[_Inputs, Sample]],
    window: SharedWindow,
    checked_only: int = 0,
) -> Arena:
    shape = variants[0][1].case.shape
    tensors = [
        *(
            TensorPlace(
                each.name,
                each.nbytes(shape),
                offsets=tuple(
                    window.put(inputs.contents[each.name])
                    for inputs, _ in variants
                    if each.name in inputs.contents
                ),
                drawings=tuple(
                    inputs.drawings[each.name] for inputs, _ in variants if each.name in inputs.drawings
                ),
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
    return Arena(index, task, shape, drawn, Place(index, tuple(tensors)), window, checked_only)


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
