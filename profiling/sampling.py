"""Samples of large tensors: enough to find a wrong kernel, few enough to compute the reference and compare.

The shapes that are timed are large. Where a task names an independent dimension, the reference is computed on some
of its indices only; elsewhere it is computed in full. Either way bands of each tensor are compared, along a second
axis too where slices are large.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import numpy as np

from mctskernel.core.dtypes import numpy_dtype
from mctskernel.core.task import Array, Shape, Task, Tensor
from mctskernel.core.tensor_array import arange_on, device_of
from mctskernel.profiling.comparison import Noise
from mctskernel.profiling.input_values import Scattered
from mctskernel.profiling.verify import Case, expect, expect_propagated

ELEMENTS = 1 << 19
"""About how many elements of a tensor are compared, in all samples of it that belong together."""

LARGE_SLICES = 2
"""With more than so many times these elements in the slices of one axis, only some of another axis are compared."""

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

    def places(self, extents: tuple[int, ...], device: str = "") -> Any:
        """The places of what `of` gives, in the flattened tensor of these extents; a tensor where a device is named."""
        arange, inner = arange_on(device), math.prod(extents[self.axis + 1 :])
        outer = arange(math.prod(extents[: self.axis])) * (extents[self.axis] * inner)
        along = arange(extents[self.axis])[self.indices] * inner
        found = outer[:, None, None] + along[:, None] + arange(inner)
        return found.reshape(*extents[: self.axis], -1, *extents[self.axis + 1 :])

    def of(self, array: Array) -> Array:
        """The bands of a whole tensor, one after another."""
        return array.take(self.indices, self.axis)


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
    """A case of bands, axis 0 first, of some tensors; those that `bands` doesn't name are compared whole."""

    case: Case
    bands: Mapping[str, tuple[Bands, ...]]

    def parts(self, tensor: Tensor, shape: Shape) -> Iterator[Part]:
        """What to fetch of a tensor at the whole shape, in order; see `joined`."""
        extents, size = tensor.extents(shape), numpy_dtype(tensor.dtype).itemsize
        bands = self.bands.get(tensor.name, (Bands(0, ((0, extents[0]),)),))
        axis = bands[-1].axis
        inner = math.prod(extents[axis + 1 :]) * size
        between = math.prod(extents[1:axis]) if axis else 1
        for first, rows in bands[0].runs if len(bands) > 1 else ((0, extents[0] if axis else 1),):
            for start, count in bands[-1].runs:
                yield Part(
                    first * between * extents[axis] * inner + start * inner,
                    rows * between,
                    count * inner,
                    extents[axis] * inner,
                    (*((rows, *extents[1:axis]) if axis else ()), count, *extents[axis + 1 :]),
                )

    def joined(self, tensor: Tensor, parts: list[Array]) -> Array:
        """What the fetched parts of a tensor make together."""
        bands = self.bands.get(tensor.name)
        if bands is None:
            return parts[0]
        runs = len(bands[-1].runs)
        rows = [np.concatenate(parts[at : at + runs], bands[-1].axis) for at in range(0, len(parts), runs)]
        return np.concatenate(rows)


Take = Callable[[Tensor, Bands | None], Array]  # gives an input: some indices of an axis, or all of it


def whole(case: Case) -> Sample:
    """Every element."""
    return Sample(case, {})


def draw_sample(
    task: Task,
    shape: Shape,
    seed: int,
    rng: np.random.Generator,
    *,
    samples: int = 1,
    put: Callable[[Array], Array] = np.asarray,
    special: Scattered | None = None,
) -> tuple[Mapping[str, Array], Sample]:
    """Fresh inputs at a large shape and a sample of their outputs; `put` may place them elsewhere."""
    inputs = task.draw_inputs(shape, seed)
    if special is not None:
        special.put(inputs)

    def take(tensor: Tensor, bands: Bands | None) -> Array:
        return put(bands.of(inputs[tensor.name]) if bands is not None else inputs[tensor.name])

    made: dict[str, Array] = {}

    # Drawn again where they are needed, rather than kept whole; a task that makes its inputs makes all at once.
    def again(tensor: Tensor, _: Bands | None) -> Array:
        if task.make_inputs is None:
            return put(task.draw_inputs(shape, seed, {tensor.name})[tensor.name])
        if tensor.name not in made:
            made.update(task.draw_inputs(shape, seed))
        return put(made.pop(tensor.name))

    again_if_whole = None if task.independent else again
    sample = sample_of(task, shape, seed, rng, take, samples=samples, again=again_if_whole, special=special)
    return inputs, sample


def sample_of(
    task: Task,
    shape: Shape,
    seed: int,
    rng: np.random.Generator,
    take: Take,
    *,
    samples: int = 1,
    again: Take | None = None,
    special: Scattered | None = None,
) -> Sample:
    """Bands of what the inputs of a large shape must give; `rng` chooses them. Inputs aren't part of its case.

    `special` is in the inputs that `take` gives, and in one that has the independent dimension.

    `take` gives an input at some indices of the independent dimension, or all of one that doesn't have it; `again`
    gives the same later, and without it they are kept. `samples` is among how many of them, this one included,
    the elements that are compared are shared out.
    """
    elements = ELEMENTS // samples
    axes = {
        tensor.name: (tensor.shape.index(task.independent), tensor.extents(shape))
        for tensor in (*task.inputs, *task.outputs)
        if task.independent and task.independent in tensor.shape
    }
    taken: dict[str, Bands] = {}
    part = dict(shape)
    if axes:
        few = min(_few(extents, axis, elements) for axis, extents in axes.values())
        runs = _runs(int(shape[task.independent]), few, rng)
        taken = {name: Bands(axis, runs) for name, (axis, _) in axes.items()}
        part[task.independent] = sum(count for _, count in runs)
    inputs = _taken(task, take, taken)
    compared = {
        output.name: tuple(_compared(output.extents(part), taken.get(output.name), elements, rng))
        for output in task.outputs
    }

    def chosen(name: str, array: Array) -> Array:
        return reduce(lambda left, bands: bands.of(left), compared[name], array)

    if special is None:
        case = expect(task, part, seed, inputs, part_of=shape, part=chosen)
    else:
        places = taken[special.name].places(axes[special.name][1], device_of(inputs.values()))
        given_special = (special.name, special.at(places))
        case = expect_propagated(task, part, seed, inputs, given_special, part_of=shape, part=chosen)
    given = case.inputs
    inputs_again = partial(_taken, task, again, taken) if again is not None else lambda: given
    case = replace(
        case,
        shape=shape,
        inputs={},
        noise=Noise(task, part, seed, inputs_again, case.expected, part=chosen),
    )
    bands = {
        name: sorted((*([taken[name]] if name in taken else []), *others), key=lambda each: each.axis)
        for name, others in compared.items()
    }
    return Sample(case, {name: tuple(each) for name, each in bands.items() if each})


def _taken(task: Task, take: Take, bands: Mapping[str, Bands]) -> dict[str, Array]:
    return {tensor.name: take(tensor, bands.get(tensor.name)) for tensor in task.inputs}


def _compared(
    extents: tuple[int, ...], taken: Bands | None, elements: int, rng: np.random.Generator
) -> Iterator[Bands]:
    """Which elements are compared of an output of which some indices of one axis are `taken`, if any are.

    Never a part of the last axis, unless it is the only one: the scale of a comparison is the largest of a row.
    """
    size, first = math.prod(extents), taken
    if first is None and size > elements:
        first = _bands(extents, 0, _few(extents, 0, elements), rng)
        size = size // extents[0] * len(first.indices)
        yield first
    others = [0] if first is not None and first.axis else range(1, len(extents) - 1)
    if first is None or not others or size <= LARGE_SLICES * elements:
        return
    axis = max(others, key=lambda each: extents[each])
    yield _bands(extents, axis, min(extents[axis], max(2, elements * extents[axis] // size)), rng)


def _few(extents: tuple[int, ...], axis: int, elements: int) -> int:
    """How many indices of an axis make about so many elements; at least three, if there are three."""
    others = int(np.prod(extents, dtype=np.int64)) // extents[axis]
    return min(extents[axis], max(3, elements // max(others, 1)))


def _bands(extents: tuple[int, ...], axis: int, count: int, rng: np.random.Generator) -> Bands:
    return Bands(axis, _runs(extents[axis], count, rng))


def _runs(extent: int, count: int, rng: np.random.Generator) -> tuple[tuple[int, int], ...]:
    """About `count` of the indices below `extent` in a few runs: the first, the last, and others at random.

    Of two the first or the last: no index may be known to be left out.
    """
    if count >= extent:
        return ((0, extent),)
    number = min(MOST_BANDS, count)
    length = count // number
    last = extent - length
    ends = (0, last) if number > 2 else (int(rng.choice((0, last))),)
    inner = (int(start) for start in rng.integers(0, last + 1, number - len(ends)))
    return tuple((start, length) for start in sorted((*ends, *inner)))
