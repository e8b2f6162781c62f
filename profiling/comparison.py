"""One output against its reference, element by element.

A tolerance is relative to a row's largest result, since a sum's error follows its terms and not what is left when they
cancel. Where a whole output is one row, one huge element would excuse errors of all the others, so each element counts
by itself there. What float arithmetic can't do better, whatever the order of its sums, is `Noise`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from mctskernel.core.dtypes import (
    DType,
    arithmetic_dtype,
    has_infinity,
    is_floating,
    largest_number,
    numpy_dtype,
    rounding_unit,
    smallest_denormal,
    smallest_normal,
)
from mctskernel.core.evaluation import Guard
from mctskernel.core.task import Array, Bound, Denormals, Shape, Task, TaskError, Tolerance
from mctskernel.core.tensor_array import TensorArray, on_device
from mctskernel.profiling.input_values import as_bits, is_poison

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Deviation:
    """How far an output is off: `error` is a fraction of what is allowed; too far, it has a `message` and a `guard`."""

    error: float
    message: str = ""
    guard: Guard = Guard.COMPARISON

    @property
    def passed(self) -> bool:
        """Whether every element is within the tolerance."""
        return not self.message


def compare(
    actual: Array, expected: Array, plain: Array, tolerance: Tolerance, *, noise: Array | None = None
) -> Deviation:
    """One output against its reference, as `Tolerance` says; integers and truth values within its absolute part.

    `noise` is what each element may be off in any case. Where it isn't known, an element of a single row is taken to be
    made of terms of its own size, or of the middle one of all. The absolute part shrinks with outputs below 1, unless
    their noise is larger, and isn't just that of denormals.

    NaN and infinities pass only where the reference, rounded to the output's precision, has the same; what overflows
    a type without infinities may be its largest number too. A truth value is a byte of 0 or 1.
    """
    if actual.shape != expected.shape:
        return Deviation(float("inf"), f"it has the shape {actual.shape}, not {expected.shape}.")
    if not is_floating(actual.dtype):
        return _compare_integers(actual, expected, tolerance)
    truth = expected.astype(np.float64)
    magnitude = np.where(np.isfinite(truth), np.abs(truth), 0.0)
    with np.errstate(all="ignore"):
        error = np.abs(actual.astype(np.float64) - truth)
        error[_same_special(actual, truth)] = 0.0
        error[~np.isfinite(error)] = np.inf
        largest = float(magnitude.max(initial=0.0))
        # Denormals of the output's type are as far apart as its smallest one is large.
        unknown = 0.5 * smallest_denormal(actual.dtype) + (0.0 if noise is None else noise)
        # What is all noise, or nothing, is left over from terms of another size; noise may be that of denormals only.
        least = DENORMAL_NOISE * smallest_normal(actual.dtype) if largest else 0.0
        is_noise = noise is not None and max(largest, least) < float(noise.max(initial=0.0))
        absolute = tolerance.absolute * (1.0 if is_noise else min(1.0, largest))
        allowed = absolute + tolerance.relative * _scale(magnitude, noise, actual.dtype)
        if tolerance.element is not None:
            allowed = np.minimum(allowed, _bound(truth, tolerance.element))
        allowed, unavoidable = allowed + unknown, absolute + np.zeros_like(truth) + unknown
        # An infinite error is too much, however much is allowed.
        excess = np.where((error == 0.0) | np.isinf(error), error, error / allowed)
    worst = float(excess.max(initial=0.0))
    if worst > 1.0:
        return _describe(actual, expected, excess > 1.0, worst)
    usual = _plain_errors(plain, truth, actual.dtype)
    if is_single_row(truth.shape):
        # As shares of what each element is allowed.
        with np.errstate(all="ignore"):
            usual, excess = (np.where(each == 0, 0.0, each / allowed) for each in (usual, error))
    else:
        unavoidable, excess = unavoidable.max(initial=0.0), error
    limit = tolerance.ratio * float(usual.max(initial=0.0))
    beyond = (excess > limit) & (error > unavoidable)
    if not beyond.any():
        return Deviation(worst)
    index = np.unravel_index(int(np.where(beyond, excess, 0.0).argmax()), error.shape)
    return Deviation(
        max(worst, float(excess[index]) / limit if limit else float("inf")),
        f"its error of {error[index]:.3g} at {_index(index)} is more than {tolerance.ratio:g} times that of the plain "
        "reference in the same precision.",
        Guard.PRECISION,
    )


def nearest_truth(
    actual: Array, expected: Array, alternatives: Sequence[Array], unsettled: Mask | None = None
) -> Array:
    """Of several truths the nearest to each element; where none is settled, what was written, unless poison."""
    truth = expected
    if alternatives:
        with np.errstate(all="ignore"):
            distances = [_distance(actual, each) for each in (expected, *alternatives)]
        choice = np.argmin(distances, axis=0)
        truth = np.choose(choice, (expected, *alternatives))
    if unsettled is None:
        return truth
    free: Array = np.where(unsettled & ~is_poison(actual), actual.astype(truth.dtype), truth)
    return free


def _distance(actual: Array, truth: Array) -> Array:
    distance = np.abs(actual.astype(np.float64) - truth.astype(np.float64))
    if is_floating(actual.dtype):
        distance[_same_special(actual, truth.astype(np.float64))] = 0.0
    distance[np.isnan(distance)] = np.inf
    return distance


def _compare_integers(actual: Array, expected: Array, tolerance: Tolerance) -> Deviation:
    with np.errstate(all="ignore"):
        if actual.dtype.kind == "b":
            # The byte itself: numpy takes every one but 0 for true.
            wrong = as_bits(actual).reshape(actual.shape) != expected.astype(np.bool_).astype(np.uint8)
        else:
            whole = expected.astype(actual.dtype)
            wrong = actual != whole
            if tolerance.absolute >= 1:
                apart = np.where(actual > whole, actual - whole, whole - actual).astype(np.uint64)
                wrong = apart > min(tolerance.absolute, 2.0**53)
    shown = as_bits(actual).reshape(actual.shape) if actual.dtype.kind == "b" else actual
    return _describe(shown, expected, wrong, 1.0 if wrong.any() else 0.0)


def _plain_errors(plain: Array, truth: Array, dtype: np.dtype[np.generic]) -> Array:
    """The plain reference's errors, each at least half a unit in the last place: exactness may be chance."""
    finite = np.isfinite(truth) & np.isfinite(plain)
    with np.errstate(all="ignore"):
        error = np.where(finite, np.abs(plain.astype(np.float64) - truth), 0.0)
    return np.asarray(np.maximum(error, 0.5 * rounding_unit(dtype) * np.where(finite, np.abs(truth), 0.0)))


def _describe(actual: Array, expected: Array, wrong: Mask, error: float) -> Deviation:
    count = int(wrong.sum())
    if not count:
        return Deviation(error)
    first = np.unravel_index(int(wrong.argmax()), wrong.shape)
    message = (
        f"{count} of {wrong.size} elements, the first at {_index(first)}: "
        f"got {_number(actual[first])}, expected {_number(expected[first])}."
    )
    unwritten = int((wrong & is_poison(actual)).sum())
    if unwritten:
        share = "all" if unwritten == count else f"{unwritten}"
        message += f" It looks as if {share} of them were never written."
    return Deviation(error, message, Guard.POISON if unwritten else Guard.COMPARISON)


def _scale(magnitude: Array, noise: Array | None, dtype: DType) -> Array:
    """What the relative part of the tolerance is a share of: the row's largest value, or the terms of an element.

    Terms are what the noise is roundings of, and of one element few are seen.
    """
    if not magnitude.ndim:
        return magnitude
    row: Array = magnitude.max(axis=-1, keepdims=True, initial=0.0)
    if not is_single_row(magnitude.shape):
        return row
    unit = 0.5 * rounding_unit(arithmetic_dtype(dtype))
    terms = np.median(magnitude) if noise is None else 4.0 / MARGIN * noise / unit
    return np.asarray(np.minimum(row, np.maximum(magnitude, terms)))


def _bound(truth: Array, bound: Bound) -> Array:
    """What each element is allowed by its own size; one that isn't finite is compared otherwise."""
    return np.asarray(np.minimum(bound.absolute + bound.relative * np.abs(truth), bound.most))


def _same_special(actual: Array, truth: Array) -> Mask:
    """Where both are NaN, or the same infinity, once the truth is rounded to the output's precision."""
    representable = truth.astype(actual.dtype)
    same = (actual == representable) | (np.isnan(actual) & np.isnan(representable))
    settled: Mask = same & ~np.isfinite(representable) & ~is_poison(actual)
    if not has_infinity(actual.dtype):
        most = largest_number(actual.dtype)
        settled |= (np.abs(truth) > most) & (actual.astype(np.float64) == np.copysign(most, truth))
    return settled


def _index(index: Sequence[np.intp]) -> str:
    return "[" + ", ".join(str(int(i)) for i in index) + "]"


def _number(value: object) -> str:
    return f"{value:.9g}" if isinstance(value, np.floating) else str(value)


MARGIN = 16.0  # how many times what was seen to change an element may be off: few ways of rounding are tried
DENORMAL_NOISE = 4.0  # how many of the smallest numbers of its type an element may be off

MOST_REPEATED = 1 << 14
"""Of how many equal numbers a sum is thought to be at most; a quarter of its roundings are the same, in one direction.
"""

TF32_MARGIN = 3.0
"""How many times what some ways of rounding to TF32 change an element, or its row, another way may."""

TF32_WAYS = (None, 0, 1, 2)  # to the nearest, downwards, and twice up or down by chance
LARGE = 1 << 22  # elements of all inputs above which fewer of them are

Way = Callable[[Sequence[int], np.random.Generator], list[Array]]
"""By how many roundings an input of some extents moves along each of its axes."""


@dataclass(frozen=True)
class Noise:
    """How far a task's outputs are off, for inputs that `inputs` makes, in arithmetic that rounds as theirs does.

    An algorithm that rounds gives the exact result for other inputs: each moved by its own rounding, and terms of a sum
    by those of all partial sums that they are in (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2).
    So the inputs are moved, in float64: all of them upwards; at random; and the more, the further along an axis, by
    the square root of its extent. Where numbers are `equal`, roundings of a sum repeat and add up to more.

    That takes calls of the reference, so it is done when it is first asked for; `truth` is what it gives for the inputs
    as they are. Inputs of few digits are moved by their own roundings where they are `stored` so, else by those of
    arithmetic. `part` is what is compared of an output.
    """

    task: Task
    shape: Shape
    seed: int
    inputs: Callable[[], Mapping[str, Array]]
    truth: Mapping[str, Array]
    equal: bool = False
    stored: bool = False
    part: Callable[[str, Array], Array] = field(default=lambda _, array: array)

    @cached_property
    def of_outputs(self) -> Mapping[str, Array]:
        """What elements of floating-point outputs may be off, by rows unless it is one; empty without moved inputs."""
        inputs, rng = self.inputs(), np.random.default_rng((self.seed, 1))
        wanted = [each for each in self.task.outputs if is_floating(numpy_dtype(each.dtype))]
        ways: list[Way] = [_upwards, self._drifting, _at_random, _at_random]
        large = sum(array.size for array in inputs.values()) > LARGE
        with np.errstate(all="ignore"):
            try:
                moved = [
                    self._results({name: self._moved(each, way, rng) for name, each in inputs.items()})
                    for way in (ways[:3] if large else ways)
                ]
                moved += self._with_rounded_sums(inputs)
            except TaskError:
                return self.of_products
            kept = self.task.numerics.denormals is Denormals.PRESERVE
            least = smallest_denormal if kept else smallest_normal
            return {
                each.name: MARGIN * _noise(self.truth[each.name], [found[each.name] for found in moved])
                + DENORMAL_NOISE * least(numpy_dtype(each.dtype))
                + self.of_products.get(each.name, 0.0)
                for each in wanted
            }

    @cached_property
    def of_products(self) -> Mapping[str, Array]:
        """What TF32 products may change in floating-point outputs, and at least what they change in most rows."""
        operators = self.task.numerics.tf32
        if not operators or not self.task.takes_tensors:
            return {}
        from mctskernel.profiling.torch_rounding import TF32Products  # noqa: PLC0415 - PyTorch is an extra

        inputs, moved = in_float64(self.inputs()), []
        with np.errstate(all="ignore"):
            try:
                for seed in TF32_WAYS:
                    with TF32Products(operators, seed):
                        moved.append(self._results(inputs))
            except TaskError:
                return {}
            found = {}
            for each in self.task.outputs:
                if is_floating(numpy_dtype(each.dtype)):
                    noise = _noise(self.truth[each.name], [results[each.name] for results in moved])
                    found[each.name] = TF32_MARGIN * np.maximum(noise, np.median(noise))
            return found

    def _results(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return self.task.expected(inputs, self.shape, self.part)

    def _with_rounded_sums(self, inputs: Mapping[str, Array]) -> list[dict[str, Array]]:
        """The results of a reference that is PyTorch's when its own sums, too, are added in another order."""
        widths = [arithmetic_dtype(each.dtype) for each in inputs.values() if is_floating(each.dtype)]
        if not self.task.takes_tensors or not widths:
            return []
        from mctskernel.profiling.torch_rounding import RoundedSums  # noqa: PLC0415 - PyTorch is an extra

        unit, wide, found = 0.5 * max(map(rounding_unit, widths)), in_float64(inputs), []
        # A mean and a variance that are off the same way may cancel.
        for seed in (None, *range(self.seed, self.seed + 3)):
            with RoundedSums(unit, seed, equal=self.equal, most=MOST_REPEATED):
                found.append(self._results(wide))
        return found

    def _drifting(self, extents: Sequence[int], rng: np.random.Generator) -> list[Array]:
        most = [math.prod(each.extents(self.shape)) for each in (*self.task.inputs, *self.task.outputs)]
        repeated = min(MOST_REPEATED, max(most)) / 4
        return [
            rng.choice((-1.0, 1.0)) * (repeated if self.equal else extent**0.5) * np.linspace(0, 1, extent)
            for extent in extents
        ]

    def _moved(self, array: Array, way: Way, rng: np.random.Generator) -> Array:
        if not is_floating(array.dtype):
            return array
        # Sums are rounded as arithmetic is, however their terms are stored.
        stored = self.stored and way != self._drifting
        unit = 0.5 * rounding_unit(array.dtype if stored else arithmetic_dtype(array.dtype))
        wide: Any = array.astype(np.float64)
        wide, device = (wide.tensor, str(wide.tensor.device)) if isinstance(wide, TensorArray) else (wide, "")
        along: list[Any] = []
        for axis, steps in enumerate(way(array.shape, rng)):
            put: Any = on_device(steps, device)
            along.append((put.tensor if device else put).reshape(-1, *[1] * (len(array.shape) - 1 - axis)))
        steps = unit * reduce(operator.mul if way is _at_random else operator.add, along)
        # Zeros alone become numbers that roundings leave of others.
        moved = wide * (1.0 + steps) if bool((wide != 0).any()) else wide + steps
        return TensorArray(moved) if device else moved  # type: ignore[return-value] # where the reference takes it


def _upwards(extents: Sequence[int], _: np.random.Generator) -> list[Array]:
    return [np.full(extent, 1.0 / len(extents)) for extent in extents]


def _at_random(extents: Sequence[int], rng: np.random.Generator) -> list[Array]:
    return [rng.choice((-1.0, 1.0), extent) for extent in extents]


def _noise(truth: Array, moved: Sequence[Array]) -> Array:
    """The largest change of each element, or of its row."""
    changes = np.nan_to_num(np.max([np.abs(each - truth) for each in moved], axis=0), posinf=0.0)
    if is_single_row(truth.shape) or not truth.ndim:
        return np.asarray(changes)
    return np.asarray(np.broadcast_to(changes.max(axis=-1, keepdims=True, initial=0.0), truth.shape))


def is_single_row(extents: Sequence[int]) -> bool:
    """Whether the last axis holds all elements, and more than one."""
    return bool(extents) and extents[-1] > 1 and int(np.prod(extents, dtype=np.int64)) == extents[-1]


def in_arithmetic_precision(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Inputs as a kernel computes with them: 16-bit floats in float32."""
    return {name: array.astype(arithmetic_dtype(array.dtype), copy=False) for name, array in inputs.items()}


def in_float64(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Inputs with their floats in float64, as the truth is computed from."""
    return {
        name: array.astype(np.float64) if is_floating(array.dtype) else array
        for name, array in inputs.items()
    }
