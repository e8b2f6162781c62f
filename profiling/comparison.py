"""One output against its reference, element by element.

A tolerance is relative to a row's largest result, since a sum's error follows its terms and not what is left when they
cancel. Where a whole output is one row, one huge element would excuse errors of all the others. There each element has
a scale of its own (`Magnitudes`): how far it moves when every input changes by a small fraction, and the error of the
plain reference in roundings. Both are large where large terms cancel, and otherwise about as large as the element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from mctskernel.core.dtypes import (
    arithmetic_dtype,
    has_infinity,
    is_floating,
    largest_number,
    numpy_dtype,
    rounding_unit,
)
from mctskernel.core.evaluation import Guard
from mctskernel.core.task import Array, Bound, Shape, Task, TaskError, Tolerance
from mctskernel.profiling.input_values import as_bits, is_poison

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Comparison:
    """`error` is the largest error as a fraction of what is allowed; `message` is empty when it passes.

    `guard` is then what it failed.
    """

    error: float
    message: str = ""
    guard: Guard = Guard.COMPARISON

    @property
    def passed(self) -> bool:
        """Whether every element is within the tolerance."""
        return not self.message


def compare(
    actual: Array,
    expected: Array,
    plain: Array,
    tolerance: Tolerance,
    *,
    least_yardstick: Array | float = 0.0,
    magnitudes: Array | None = None,
) -> Comparison:
    """One output against its reference, as `Tolerance` says; integers and truth values within its absolute part.

    An error of the plain reference below `least_yardstick` is luck, and not what others are held to. `magnitudes` are
    of the terms that reach each element of an output of a single row.

    NaN and infinities pass only where the reference, rounded to the output's precision, has the same; what overflows
    a type without infinities may be its largest number too. A truth value is a byte of 0 or 1.
    """
    if actual.shape != expected.shape:
        return Comparison(float("inf"), f"it has the shape {actual.shape}, not {expected.shape}.")
    if not is_floating(actual.dtype):
        return _compare_integers(actual, expected, tolerance)
    truth = expected.astype(np.float64)
    with np.errstate(all="ignore"):
        error = np.abs(actual.astype(np.float64) - truth)
        error[_same_special(actual, truth)] = 0.0
        error[~np.isfinite(error)] = np.inf
        allowed = tolerance.absolute + tolerance.relative * _scale(truth, magnitudes)
        if tolerance.element is not None:
            allowed = np.minimum(allowed, _bound(truth, tolerance.element))
        # An infinite error is too much, however much is allowed.
        excess = np.where((error == 0.0) | np.isinf(error), error, error / allowed)
    worst = float(excess.max(initial=0.0))
    if worst > 1.0:
        return _describe(actual, expected, excess > 1.0, worst)
    if is_single_row(truth.shape):
        return _compare_shares(
            error, allowed, _plain_errors(plain, truth, actual.dtype, least_yardstick), tolerance
        )
    yardstick = float(_plain_errors(plain, truth, actual.dtype, least_yardstick).max(initial=0.0))
    limit = max(tolerance.ratio * yardstick, tolerance.absolute) if yardstick else tolerance.absolute
    largest = float(error.max(initial=0.0))
    if largest <= limit:
        return Comparison(worst)
    index = np.unravel_index(int(error.argmax()), error.shape)
    return Comparison(
        max(worst, largest / limit if limit else float("inf")),
        f"its largest error, {largest:.3g} at {_index(index)}, is more than {tolerance.ratio:g} times the "
        f"{yardstick:.3g} of the plain reference in the same precision.",
        Guard.PRECISION,
    )


def compare_signs_of_zero(actual: Array, expected: Array) -> Comparison:
    """Whether zeros have the sign of the reference's."""
    zero = (expected == 0) & (actual == 0)
    wrong = zero & (np.signbit(actual.astype(np.float64)) != np.signbit(expected.astype(np.float64)))
    return _describe(actual, expected, wrong, float("inf") if wrong.any() else 0.0)


def nearest_truth(
    actual: Array, expected: Array, alternatives: Sequence[Array], unsettled: Mask | None = None
) -> Array:
    """Of several truths, each as right as the others, the one that each element is nearest to.

    Where nothing is settled, what was written is the truth, unless it is poison.
    """
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


def _compare_integers(actual: Array, expected: Array, tolerance: Tolerance) -> Comparison:
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


def _compare_shares(error: Array, allowed: Array, yardsticks: Array, tolerance: Tolerance) -> Comparison:
    """The ratio test of a single row, on errors as shares of what each element is allowed."""
    with np.errstate(all="ignore"):
        shares, usual = (np.where(each == 0, 0.0, each / allowed) for each in (error, yardsticks))
    worst = float(shares.max(initial=0.0))
    limit = tolerance.ratio * float(usual.max(initial=0.0))
    beyond = (shares > limit) & (error > tolerance.absolute)
    if not beyond.any():
        return Comparison(worst)
    index = np.unravel_index(int(np.where(beyond, shares, 0.0).argmax()), error.shape)
    return Comparison(
        max(worst, float(shares[index]) / limit if limit else float("inf")),
        f"its error of {error[index]:.3g} at {_index(index)} is, for the terms of that element, more than "
        f"{tolerance.ratio:g} times that of the plain reference in the same precision.",
        Guard.PRECISION,
    )


def _plain_errors(plain: Array, truth: Array, dtype: np.dtype[np.generic], least: Array | float) -> Array:
    """The plain reference's errors, each at least half a unit in the last place.

    A plain result that happens to be exact, as a single sum may be, is no yardstick for anyone.
    """
    finite = np.isfinite(truth) & np.isfinite(plain)
    with np.errstate(all="ignore"):
        error = np.where(finite, np.abs(plain.astype(np.float64) - truth), 0.0)
    magnitude = np.where(finite, np.abs(truth), 0.0)
    roundings = 0.5 * rounding_unit(dtype) * magnitude
    return np.asarray(np.maximum(np.maximum(error, roundings), least))


def _describe(actual: Array, expected: Array, wrong: Mask, error: float) -> Comparison:
    count = int(wrong.sum())
    if not count:
        return Comparison(error)
    first = np.unravel_index(int(wrong.argmax()), wrong.shape)
    message = (
        f"{count} of {wrong.size} elements, the first at {_index(first)}: "
        f"got {_number(actual[first])}, expected {_number(expected[first])}."
    )
    unwritten = int((wrong & is_poison(actual)).sum())
    if unwritten:
        share = "all" if unwritten == count else f"{unwritten}"
        message += f" It looks as if {share} of them were never written."
    return Comparison(error, message, Guard.POISON if unwritten else Guard.COMPARISON)


def _scale(truth: Array, magnitudes: Array | None) -> Array:
    """What the relative part of the tolerance is a share of.

    Of a single row about which nothing else is known, an element is taken to be made of terms of its own size, or of
    the middle one of all.
    """
    scale = _row_scale(truth)
    if not is_single_row(truth.shape):
        return scale
    magnitude = np.where(np.isfinite(truth), np.abs(truth), 0.0)
    least = np.median(magnitude) if magnitudes is None else magnitudes
    return np.asarray(np.minimum(scale, np.maximum(magnitude, least)))


def _bound(truth: Array, bound: Bound) -> Array:
    """What each element is allowed by its own size; one that isn't finite is compared otherwise."""
    return np.asarray(np.minimum(bound.absolute + bound.relative * np.abs(truth), bound.most))


def _row_scale(truth: Array) -> Array:
    if truth.ndim == 0:
        return np.abs(truth)
    magnitude = np.where(np.isfinite(truth), np.abs(truth), 0.0)
    scale: Array = magnitude.max(axis=-1, keepdims=True, initial=0.0)
    return scale


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


FRACTION = 2.0**-16
"""By how much of themselves inputs are moved: many roundings of float32, and little enough to be a derivative."""

DRAWN_WAYS = 1 << 16

LARGE = 1 << 22
"""Elements of all inputs above which the reference is called less often."""

MARGIN = 4.0
"""How many times the largest of the movements that were seen an element's terms may have; few are tried."""

NUDGES = ((1.0,), (-1.0, 1.0), (-1.0, 1.0), (-1.0, 1.0))
"""Which ways the inputs are moved to see what that changes: all upwards, which is about as much as the order of a sum
can matter, and at random, where a sum of few may hardly change at all."""


@dataclass(frozen=True)
class Magnitudes:
    """The magnitudes of a task's outputs for inputs that `inputs` makes, computed when they are first asked for.

    That takes nine calls of the reference, five where inputs are `LARGE`, so it is done only when needed.
    """

    task: Task
    shape: Shape
    seed: int
    inputs: Callable[[], Mapping[str, Array]]

    @cached_property
    def of_outputs(self) -> Mapping[str, Array]:
        """For each floating-point output of one row an array of its shape; none where no input is floating-point.

        Infinite where it is unknown, as beside a NaN.
        """
        inputs = self.inputs()
        wanted = [
            tensor.name
            for tensor in self.task.outputs
            if is_single_row(tensor.extents(self.shape)) and is_floating(numpy_dtype(tensor.dtype))
        ]
        if not wanted or not any(is_floating(array.dtype) for array in inputs.values()):
            return {}
        rng = np.random.default_rng((self.seed, len(NUDGES)))
        unit = 0.5 * max(
            rounding_unit(arithmetic_dtype(array.dtype))
            for array in inputs.values()
            if is_floating(array.dtype)
        )
        with np.errstate(all="ignore"):
            try:
                still = self.task.expected(in_float64(inputs), self.shape)
                found = {name: np.abs(still[name].astype(np.float64)) for name in wanted}
                large = sum(array.size for array in inputs.values()) > LARGE
                for ways in NUDGES[:2] if large else NUDGES:
                    moved = {name: _moved(array, ways, rng) for name, array in inputs.items()}
                    truth = self.task.expected(in_float64(moved), self.shape)
                    plain = self.task.expected(moved, self.shape)
                    for name in wanted:
                        movement = np.abs(truth[name] - still[name]) / FRACTION
                        error = np.abs(plain[name] - truth[name]) / unit
                        found[name] = np.maximum(found[name], MARGIN * np.maximum(movement, error))
            except TaskError:
                return {}
        return {name: np.where(np.isnan(array), np.inf, array) for name, array in found.items()}


def is_single_row(extents: Sequence[int]) -> bool:
    """Whether the last axis holds all elements, and more than one."""
    return bool(extents) and extents[-1] > 1 and int(np.prod(extents, dtype=np.int64)) == extents[-1]


def in_float64(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Inputs with their floats in float64, as the truth is computed from."""
    return {
        name: array.astype(np.float64) if is_floating(array.dtype) else array
        for name, array in inputs.items()
    }


def _moved(array: Array, ways: Sequence[float], rng: np.random.Generator) -> Array:
    """In the precision that a plain implementation computes in; which way repeats itself in large arrays."""
    if not is_floating(array.dtype):
        return array
    dtype = arithmetic_dtype(array.dtype)
    factors = (1.0 + FRACTION * rng.choice(ways, min(array.size, DRAWN_WAYS))).astype(dtype)
    return np.asarray(np.asarray(array).astype(dtype, copy=False) * np.resize(factors, array.shape))
