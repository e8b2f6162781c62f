"""Samples of large tensors: enough to find a wrong kernel, few enough to compute the reference and compare.

The shapes that are timed are large. Where a task names an independent dimension, the reference is computed on some
of its indices only; elsewhere it is computed in full. Either way bands of each tensor are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from mctskernel.core.dtypes import numpy_dtype
from mctskernel.core.task import Array, Shape, Task, Tensor
from mctskernel.profiling.comparison import Magnitudes
from mctskernel.profiling.verify import Case, draw_case, expect

ELEMENTS = 1 << 19
"""About how many elements of a tensor are compared, in all samples of it that belong together."""

MOST_BANDS = 8


@dataclass(frozen=True)
class Bands:
    """Runs of indices along one axis of a tensor, each a start and a length; they may overlap."""

    axis: int
    runs: tuple[tuple[int, int], ...]

    @property
    def indices(self) -> Array:
        """Every index, run by run."""
        return np.concatenate([np.arange(start, start + count) for start, count in self.runs])

    def of(self, array: Array) -> Array:
        """The bands of a whole tensor, one after another."""
        return np.take(array, self.indices, self.axis)


@dataclass(frozen=True)
class Part:
    """Packed bytes of a tensor: `rows` of `width` bytes, `pitch` apart, from `start`; an array of `extents`."""

    start: int
    rows: int
    width: int
    pitch: int
    extents: tuple[int, ...]


@dataclass(frozen=True)
class Sample:
    """A case of bands of some tensors; a tensor that `bands` doesn't name is compared whole."""

    case: Case
    bands: Mapping[str, Bands]

    def parts(self, tensor: Tensor, shape: Shape) -> Iterator[Part]:
        """What to fetch of a tensor at the whole shape, in order; see `joined`."""
        extents, size = tensor.extents(shape), numpy_dtype(tensor.dtype).itemsize
        bands = self.bands.get(tensor.name)
        if bands is None:
            nbytes = int(np.prod(extents, dtype=np.int64)) * size
            yield Part(0, 1, nbytes, nbytes, extents)
            return
        outer = int(np.prod(extents[: bands.axis], dtype=np.int64))
        inner = int(np.prod(extents[bands.axis + 1 :], dtype=np.int64)) * size
        for start, count in bands.runs:
            yield Part(
                start * inner,
                outer,
                count * inner,
                extents[bands.axis] * inner,
                (*extents[: bands.axis], count, *extents[bands.axis + 1 :]),
            )

    def joined(self, tensor: Tensor, parts: list[Array]) -> Array:
        """What the fetched parts of a tensor make together."""
        return np.concatenate(parts, self.bands[tensor.name].axis) if tensor.name in self.bands else parts[0]


def whole(case: Case) -> Sample:
    """Every element."""
    return Sample(case, {})


def draw_sample(
    task: Task, shape: Shape, seed: int, rng: np.random.Generator, samples: int = 1
) -> tuple[Mapping[str, Array], Sample]:
    """Fresh inputs at a large shape, and bands of what they must give; `rng` chooses the bands.

    `samples` is among how many of them, this one included, the elements that are compared are shared out.
    """
    elements = ELEMENTS // samples
    if not task.independent:
        case = draw_case(task, shape, seed)
        # Drawn again where they are needed, rather than kept whole.
        again = Magnitudes(task, shape, seed, lambda: task.draw_inputs(shape, seed))
        case = replace(case, magnitudes=again)
        bands = {
            name: _bands(array.shape, 0, _few(array.shape, 0, elements), rng)
            for name, array in (*case.inputs.items(), *case.expected.items())
            if array.size > elements
        }
        return case.inputs, _restricted(case, bands)
    inputs = task.draw_inputs(shape, seed)
    axes = {
        tensor.name: (tensor.shape.index(task.independent), tensor.extents(shape))
        for tensor in (*task.inputs, *task.outputs)
        if task.independent in tensor.shape
    }
    few = min(_few(extents, axis, elements) for axis, extents in axes.values())
    runs = _runs(int(shape[task.independent]), few, rng)
    bands = {name: Bands(axis, runs) for name, (axis, _) in axes.items()}
    taken = {name: bands[name].of(array) if name in bands else array for name, array in inputs.items()}
    indices = sum(count for _, count in runs)
    case = expect(task, {**shape, task.independent: indices}, seed, taken, part_of=shape)
    others = {
        name: _bands(array.shape, 0, _few(array.shape, 0, elements), rng)
        for name, array in taken.items()
        if name not in bands and array.size > elements
    }
    return inputs, _restricted(replace(case, shape=shape), others, bands)


def _restricted(case: Case, bands: Mapping[str, Bands], taken: Mapping[str, Bands] | None = None) -> Sample:
    """The case with bands taken of its tensors; of those in `taken` they are taken already."""

    def chosen(arrays: Mapping[str, Array]) -> dict[str, Array]:
        return {name: bands[name].of(array) if name in bands else array for name, array in arrays.items()}

    part = replace(
        case,
        inputs=chosen(case.inputs),
        expected=chosen(case.expected),
        plain=chosen(case.plain),
        places={name: bands[name].indices for name in case.expected if name in bands},
    )
    return Sample(part, {**bands, **(taken or {})})


def _few(extents: tuple[int, ...], axis: int, elements: int) -> int:
    """How many indices of an axis make about so many elements; at least two, if there are two."""
    others = int(np.prod(extents, dtype=np.int64)) // extents[axis]
    return min(extents[axis], max(2, elements // max(others, 1)))


def _bands(extents: tuple[int, ...], axis: int, count: int, rng: np.random.Generator) -> Bands:
    return Bands(axis, _runs(extents[axis], count, rng))


def _runs(extent: int, count: int, rng: np.random.Generator) -> tuple[tuple[int, int], ...]:
    """About `count` of the indices below `extent` in a few runs: the first, the last, and others at random."""
    if count >= extent:
        return ((0, extent),)
    number = min(MOST_BANDS, count)
    length = count // number
    last = extent - length
    inner = sorted(int(start) for start in rng.integers(0, last + 1, max(number - 2, 0)))
    return tuple((start, length) for start in (0, *inner, last))
