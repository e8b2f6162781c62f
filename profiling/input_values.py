"""The values of a case's inputs (as drawn, or such as kernels fail on first) and of outputs before a kernel runs."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mctskernel.core.dtypes import is_floating, numpy_dtype, rounding_unit, smallest_denormal, smallest_normal
from mctskernel.core.task import SLICE, Array, Denormals, Precision, Propagation, Shape, Task, Tensor


class Values(enum.StrEnum):
    """Which values a case's inputs have."""

    DRAWN = "drawn"
    LARGE = "large"
    SMALL = "small"
    ZERO = "zero"
    CONSTANT_ROWS = "row-constant"
    NAN = "NaN"
    INFINITY = "infinite"
    DENORMAL = "denormal"
    MIXED_SCALES = "mixed-scale"
    ALTERNATING = "alternating"
    SORTED = "sorted"
    ONE_HOT = "one-hot"
    OFFSET = "offset"
    EXTREMES = "extreme"
    FULL_PRECISION = "full-precision"
    LARGE_FULL_PRECISION = "large full-precision"
    WIDENED = "widened"


FIRST = (Values.LARGE, Values.SMALL, Values.ZERO, Values.CONSTANT_ROWS)
"""Values in every verification, the first of them on the largest shape."""

CONTRACTED = (Values.NAN, Values.INFINITY, Values.DENORMAL)
"""Values in every verification where the task's contract covers them."""

IN_TURN = (
    Values.EXTREMES,
    Values.OFFSET,
    Values.ALTERNATING,
    Values.MIXED_SCALES,
    Values.ONE_HOT,
    Values.SORTED,
)
"""One of these is in each verification, chosen by its seed; all are in the final validation."""

_DIGITS = {"float32": (8, 0.375 * 2.0**-11), "float64": (20, 0.375 * 2.0**-24)}
"""The bits that a full-precision number begins with, and what is behind them; of mantissas between 0.5 and 1.

Rounded to TF32, bfloat16 or float16 (of a float64: to float32) all such numbers lose this, whichever way they are
rounded, so that the errors of products add up in whatever is made of them.
"""

_TF32_DIGITS = (8, 0.375 * 2.0**-8)  # digits of TF32 that bfloat16 drops

_LARGER = (1.0, 4.0, 16.0)
"""What large numbers of full precision are multiplied by, one input by one of them at random.

Where a small number is added to others its digits are lost, and where a large one is an exponent.
"""

_MIXED_BITS = {"float8_e4m3fn": 2, "float8_e5m2": 4, "float16": 5}
_POWERS_OF_TWO = (-2.0, -1.0, -0.5, 0.5, 1.0, 2.0)


def applicable(task: Task, values: Values) -> bool:
    """Whether a task's inputs can have such values and its contract covers them."""
    numerics, made = task.numerics, task.make_inputs is not None
    propagation = {Values.NAN: numerics.nan, Values.INFINITY: numerics.infinity}
    match values:
        case Values.DRAWN:
            return True
        case Values.NAN | Values.INFINITY:
            return propagation[values] is not Propagation.UNSPECIFIED and bool(task.receivers(_KEYS[values]))
        case Values.DENORMAL:
            return numerics.denormals is not Denormals.UNSPECIFIED and bool(task.receivers("denormals"))
        case Values.FULL_PRECISION | Values.LARGE_FULL_PRECISION:
            return (
                task.precision is Precision.LOCKED
                and not (made and values is Values.LARGE_FULL_PRECISION)
                and any(tensor.dtype in _DIGITS for tensor in task.inputs)
            )
        case Values.WIDENED:
            return not made and any(map(is_drawn_float, task.inputs))
        case Values.EXTREMES:
            return not made and any(map(_is_whole, task.inputs))
    return not made and (values not in IN_TURN or bool(task.receivers("scales")))


_KEYS = {Values.NAN: "nan", Values.INFINITY: "infinity", Values.DENORMAL: "denormals"}
"""What a task's contract calls these values."""


def with_values(
    task: Task, shape: Shape, drawn: Mapping[str, Array], values: Values, rng: np.random.Generator
) -> dict[str, Array]:
    """Drawn inputs with such values in place of their own; infinities and NaN are `places`'."""
    if values in {Values.DRAWN, Values.NAN, Values.INFINITY}:
        return dict(drawn)
    if values is Values.DENORMAL:
        chosen = _one_of(task.receivers("denormals"), rng)
        return {**drawn, chosen.name: _denormals(drawn[chosen.name], rng)}
    if values in {Values.FULL_PRECISION, Values.LARGE_FULL_PRECISION}:
        large = values is Values.LARGE_FULL_PRECISION
        operands, apart = _of_products(task)
        far = {} if large or task.make_inputs is not None else apart
        return {
            tensor.name: drawn[tensor.name]
            if tensor.distribution == "integers"
            else _full_precision(
                drawn[tensor.name],
                rng.choice(_LARGER) if large else far.get(tensor.name, 1.0),
                positive=_may_be_positive(task, tensor, shape),
                tf32=tensor.name in operands,
            )
            for tensor in task.inputs
        }
    return {
        tensor.name: _within_limits(tensor.limits(shape), drawn[tensor.name], values, rng)
        if tensor.distribution != "normal"
        else _special(drawn[tensor.name], values, tensor.scales or task.numerics.scales, rng)
        for tensor in task.inputs
    }


def is_drawn_float(tensor: Tensor) -> bool:
    """Whether an input is of floats from a distribution."""
    return tensor.distribution != "integers" and is_floating(numpy_dtype(tensor.dtype))


def widened(tensor: Tensor, shape: Shape) -> Tensor:
    """An input of other numbers than its task draws: of both signs, shifted and larger."""
    if tensor.distribution == "normal":
        return replace(tensor, distribution="uniform", low=-4.0, high=8.0)
    low, high = tensor.limits(shape)
    return replace(tensor, low=2.5 * low - 1.5 * high, high=1.5 * high - 0.5 * low)


def places(
    task: Task, drawn: Mapping[str, Array], values: Values, rng: np.random.Generator
) -> tuple[str, Array]:
    """An input, and an array of the special values that replace drawn numbers in it; 0 elsewhere.

    One place, or one of each of two rows where there is an independent dimension; of the NaN a whole row as well.
    """
    tensor = _one_of(task.receivers(_KEYS[values]), rng)
    special = np.zeros(drawn[tensor.name].shape)
    kinds = [np.inf, -np.inf] if values is Values.INFINITY else [np.nan, np.nan]
    rng.shuffle(kinds)
    axis = tensor.shape.index(task.independent) if task.independent in tensor.shape else None
    rows = special.shape[axis] if axis is not None else 1
    if axis is None or rows < 3:
        special[_somewhere(special.shape, rng)] = kinds[0]
        return tensor.name, special
    first, second, third = (int(row) for row in rng.choice(rows, 3, replace=False))
    by_row = np.moveaxis(special, axis, 0)
    by_row[(first, *_somewhere(by_row.shape[1:], rng))] = kinds[0]
    by_row[(second, *_somewhere(by_row.shape[1:], rng))] = kinds[1]
    if values is Values.NAN and rows > 3:
        by_row[third] = np.nan
    return tensor.name, special


@dataclass(frozen=True)
class Scattered:
    """A special value in an input of a large shape: at the place `first` of it, flattened, and every `every`-th."""

    name: str
    value: float
    every: int
    first: int

    @property
    def values(self) -> Values:
        """Which values they are."""
        return Values.NAN if np.isnan(self.value) else Values.INFINITY

    def put(self, inputs: Mapping[str, Array]) -> None:
        """Put the value into an input."""
        inputs[self.name].reshape(-1)[self.first :: self.every] = self.value

    def at(self, places: Any) -> Any:
        """The value at those of some places that have it, and 0 elsewhere; places and values may be a tensor's."""
        found = places * 0.0
        found[places % self.every == self.first] = self.value
        return found


def scattered(task: Task, shape: Shape, values: Values, rng: np.random.Generator) -> Scattered | None:
    """NaN or infinities at the first index of the independent dimension, and in about every other; none without one."""
    tensors = tuple(each for each in task.receivers(_KEYS[values]) if task.independent in each.shape)
    if not tensors:
        return None
    tensor = _one_of(tensors, rng)
    extents = tensor.extents(shape)
    axis = tensor.shape.index(task.independent)
    inner = math.prod(extents[axis + 1 :])
    slice_ = math.prod(extents) // extents[axis]
    first = int(rng.integers(slice_ // inner)) * inner * extents[axis] + int(rng.integers(inner))
    value = np.nan if values is Values.NAN else float(rng.choice((-np.inf, np.inf)))
    every = 2 * slice_ + 1
    return Scattered(tensor.name, value, every, first % every)


def _somewhere(extents: tuple[int, ...], rng: np.random.Generator) -> tuple[int, ...]:
    return tuple(int(rng.integers(extent)) for extent in extents)


def _one_of(tensors: tuple[Tensor, ...], rng: np.random.Generator) -> Tensor:
    return tensors[int(rng.integers(len(tensors)))]


def _is_whole(tensor: Tensor) -> bool:
    return tensor.distribution == "integers" and not is_floating(numpy_dtype(tensor.dtype))


def _may_be_positive(task: Task, tensor: Tensor, shape: Shape) -> bool:
    """Whether the numbers of an input may all be made positive: errors that have one sign don't average out."""
    low, high = tensor.limits(shape)
    return task.make_inputs is None and (tensor.distribution == "normal" or -low <= high)


def _of_products(task: Task) -> tuple[frozenset[str], Mapping[str, float]]:
    """The inputs that are multiplied in TF32 where a kernel may do that, and factors beyond float16's range."""
    if not task.numerics.tf32 or not task.takes_tensors:
        return frozenset(), {}
    from mctskernel.profiling.torch_rounding import tf32_inputs  # noqa: PLC0415 - PyTorch is an extra

    found = tf32_inputs(task)
    return found.operands, found.apart


def _full_precision(drawn: Array, scale: float, *, positive: bool, tf32: bool) -> Array:
    """Numbers as drawn, times a power of two, but with digits that a lower precision drops; whole numbers stay.

    Those that are multiplied in `tf32` have digits that this precision keeps.
    """
    if not is_floating(drawn.dtype):
        return drawn
    if drawn.size > SLICE:  # what is computed on the way stays in the cache
        parts = np.split(drawn.reshape(-1), range(SLICE, drawn.size, SLICE))
        made = [_full_precision(part, scale, positive=positive, tf32=tf32) for part in parts]
        return np.concatenate(made).reshape(drawn.shape)
    found = np.abs(drawn)
    if drawn.dtype.name in _DIGITS:
        bits, rest = _TF32_DIGITS if tf32 else _DIGITS[drawn.dtype.name]
        mantissa, exponent = np.frexp(found)
        longer = np.ldexp(np.floor(np.ldexp(mantissa, bits)) / 2.0**bits + rest, exponent)
        found = np.where(found == np.rint(found), found, longer)
    found = (found.astype(np.float64) * scale).astype(drawn.dtype)
    return found if positive else np.copysign(found, drawn)


def without_digits(array: Array) -> Array:
    """Numbers of full precision, rounded towards zero to the bits that they begin with; integers as they are."""
    if not is_floating(array.dtype):
        return array
    mantissa, exponent = np.frexp(array.astype(np.float64))
    return np.asarray(np.ldexp(np.trunc(mantissa * 256) / 256, exponent))


def _denormals(drawn: Array, rng: np.random.Generator) -> Array:
    """As many digits as denormals have, either sign."""
    step = smallest_denormal(drawn.dtype)
    count = round(smallest_normal(drawn.dtype) / step)
    return np.asarray((rng.integers(1 - count, count, drawn.shape) * step).astype(drawn.dtype))


def _special(drawn: Array, values: Values, scales: tuple[float, float], rng: np.random.Generator) -> Array:
    """Special values of an input that has no range."""
    wide, dtype = drawn.astype(np.float64), drawn.dtype
    match values:
        case Values.LARGE:
            return np.asarray((wide * scales[1]).astype(dtype))
        case Values.SMALL:
            return np.asarray((wide * scales[0]).astype(dtype))
        case Values.ZERO:
            return np.zeros_like(drawn)
        case Values.CONSTANT_ROWS:
            # Powers of two, so that sums are exact in every order.
            rows = rng.choice(_POWERS_OF_TWO, (*drawn.shape[:-1], 1)).astype(dtype)
            return np.ascontiguousarray(np.broadcast_to(rows, drawn.shape))
        case Values.MIXED_SCALES:
            most = _MIXED_BITS.get(dtype.name, 12)
            return np.asarray((wide * 2.0 ** rng.integers(-most, most, drawn.shape)).astype(dtype))
        case Values.OFFSET:
            # A third of the digits, squared two thirds: what the differences of large squares lose.
            digits = -int(np.log2(rounding_unit(dtype)))
            return np.asarray((wide + 2.0 ** (digits // 3)).astype(dtype))
        case Values.ALTERNATING:
            signs = 1.0 - 2.0 * (np.arange(drawn.shape[-1]) % 2)
            return np.asarray(((1.0 + np.abs(wide) / 64) * signs).astype(dtype))
        case Values.SORTED:
            # The largest number is by far the largest, and the last of a row or the first.
            mixed = np.sort(_special(drawn, Values.MIXED_SCALES, scales, rng).astype(np.float64), axis=-1)
            return np.where(rng.random((*drawn.shape[:-1], 1)) < 0.5, mixed, mixed[..., ::-1]).astype(dtype)
        case Values.ONE_HOT:
            column = rng.integers(drawn.shape[-1], size=(*drawn.shape[:-1], 1))
            return np.where(np.arange(drawn.shape[-1]) == column, drawn, np.zeros_like(drawn))
    return drawn


def _within_limits(
    limits: tuple[float, float], drawn: Array, values: Values, rng: np.random.Generator
) -> Array:
    """Special values of an input that has a range: its ends."""
    low, high = limits
    match values:
        case Values.LARGE:
            return np.full_like(drawn, _short(np.array(high), low, high))
        case Values.SMALL | Values.ZERO:
            return np.full_like(drawn, _short(np.array(low), low, high))
        case Values.CONSTANT_ROWS:
            rows = _short(drawn[..., :1].astype(np.float64), low, high).astype(drawn.dtype)
            return np.ascontiguousarray(np.broadcast_to(rows, drawn.shape))
        case Values.EXTREMES if not is_floating(drawn.dtype):
            # Both halves of a byte, and both signs, as packed and quantised numbers have them.
            marks = [low, low + 1, high - 1, high, 0, -1, 0x0F, 0x70, 0x7F, 0x80, 0xF0]
            return np.asarray(rng.choice([m for m in marks if low <= m <= high], drawn.shape)).astype(
                drawn.dtype
            )
    return drawn


_QUIET_NAN = {
    "float8_e4m3fn": 0xFF,
    "float8_e5m2": 0x7D,
    "float16": 0x7FCB,
    "bfloat16": 0x7FCB,
    "float32": 0x7FCBCBCB,
    "float64": 0x7FFCCBCB7FFCCBCB,
}
"""A quiet NaN of each type with a payload that arithmetic doesn't give; repeats in every 32-bit word.

8-bit floats have hardly a payload: of float8_e4m3fn's two NaNs it is the negative one, which no conversion gives.
"""


def poison(dtype: str, extents: tuple[int, ...]) -> Array:
    """An array that no kernel has written: a NaN with a payload of its own, or 0xCB in every byte."""
    kind = numpy_dtype(dtype)
    array = np.empty(extents, kind)
    array.view(f"u{kind.itemsize}")[...] = _pattern(kind)
    return array


def poison_word(dtype: str) -> int:
    """The 32-bit pattern that fills memory with poison of a type."""
    kind = numpy_dtype(dtype)
    pattern = _pattern(kind).to_bytes(kind.itemsize, "little")
    return int.from_bytes((pattern * 4)[:4], "little")


def is_poison(array: Array) -> npt.NDArray[np.bool_]:
    """Which elements hold what poison of their type does; every 203 of a uint8 does."""
    found: npt.NDArray[np.bool_] = np.asarray(as_bits(array) == _pattern(array.dtype))
    return found.reshape(array.shape)


def as_bits(array: Array) -> Array:
    """The elements as unsigned integers of their size."""
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def _pattern(dtype: np.dtype[np.generic]) -> int:
    return _QUIET_NAN.get(dtype.name, int.from_bytes(b"\xcb" * dtype.itemsize, "little"))


def _short(numbers: Array, low: float, high: float) -> Array:
    """The numbers with four significant bits, so that sums of equal ones are exact in every order, or as they are.

    Otherwise each addition rounds the same way, and a normalisation of equal numbers amplifies what adds up.
    """
    mantissa, exponent = np.frexp(numbers)
    short = np.ldexp(np.trunc(mantissa * 16) / 16, exponent)
    return np.where((low <= short) & (short <= high) & (numbers % 1 != 0), short, numbers)
