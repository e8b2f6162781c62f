"""Verification: what a kernel wrote against what it should have, for every language and device.

A case is one set of fresh inputs with the outputs they must give. A device poisons the outputs, runs the
kernel on a copy of the inputs, and hands back what both hold afterwards; `judge` says whether that is right.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mctskernel.core.dtypes import arithmetic_dtype, is_floating, numpy_dtype, rounding_unit
from mctskernel.core.evaluation import Check, Guard
from mctskernel.core.task import Array, Shape, Task, Tensor, Tolerance, shape_label

HELD_OUT_SEED = 1 << 40
MAX_WIDENING = 1000.0
ROUNDINGS = 4.0


class Values(enum.StrEnum):
    """Which values a case's inputs have. Kernels fail on the awkward ones first."""

    DRAWN = "drawn"
    LARGE = "large"
    SMALL = "small"
    ZERO = "zero"
    CONSTANT_ROWS = "row-constant"


@dataclass(frozen=True)
class Case:
    """Inputs, and what they must give.

    `expected` is the reference on float64 inputs, `plain` the reference in the inputs' own precision, whose
    error is the yardstick of the ratio test.
    """

    shape: Shape
    seed: int
    values: Values
    inputs: Mapping[str, Array]
    expected: Mapping[str, Array]
    plain: Mapping[str, Array]
    tolerance: Tolerance

    @property
    def label(self) -> str:
        """The shape, and the values where they are special."""
        label = shape_label(self.shape)
        return label if self.values is Values.DRAWN else f"{label}, {self.values} values"


@dataclass(frozen=True)
class Comparison:
    """`error` is the largest error as a fraction of what is allowed; `message` is empty when it passes.

    `guard` is then what noticed.
    """

    error: float
    message: str = ""
    guard: Guard = Guard.COMPARISON

    @property
    def passed(self) -> bool:
        """Whether every element is within the tolerance."""
        return not self.message


def draw_cases(task: Task, shapes: Sequence[Shape], seed: int, draws: int = 1) -> tuple[Case, ...]:
    """For each shape `draws` cases of drawn values, small shapes first; special values for the larger ones.

    Special values are left out where the task makes its own inputs, and where rounding the inputs would
    change the result so much that nothing could be told.
    """
    seeds = (int(word) for word in np.random.SeedSequence(seed).generate_state(len(shapes) * (draws + 1)))
    special = tuple(Values)[1:]
    cases: list[Case] = []
    for left, shape in enumerate(sorted(shapes, key=task.compulsory_bytes), 1 - len(shapes)):
        cases += [draw_case(task, shape, next(seeds)) for _ in range(draws)]
        if -left < len(special):
            awkward = _special_case(task, shape, next(seeds), special[-left])
            cases += [awkward] if awkward is not None else []
    return tuple(cases)


def draw_held_out_cases(task: Task, seed: int) -> tuple[Case, ...]:
    """Cases for the last gate: on the held-out shapes, or the verify shapes where there are none.

    Their seeds differ from those of every `draw_cases` with the same seed.
    """
    return draw_cases(task, task.held_out_shapes or task.verify_shapes, seed + HELD_OUT_SEED)


def draw_case(task: Task, shape: Shape, seed: int, values: Values = Values.DRAWN) -> Case:
    """Fresh inputs at one shape, with what they must give."""
    inputs = task.draw_inputs(shape, seed)
    if values is not Values.DRAWN:
        rng = np.random.default_rng(seed)
        inputs = {each.name: _special(each, shape, inputs[each.name], values, rng) for each in task.inputs}
    return expect(task, shape, seed, inputs, values)


def expect(
    task: Task, shape: Shape, seed: int, inputs: Mapping[str, Array], values: Values = Values.DRAWN
) -> Case:
    """A case of given inputs, with what they must give."""
    with np.errstate(all="ignore"):
        expected = task.expected(_in_float64(inputs), shape)
        plain = _rounded(task, task.expected(_in_arithmetic_precision(inputs), shape))
    return Case(shape, seed, values, inputs, expected, plain, task.tolerance)


def poison(dtype: str, extents: tuple[int, ...]) -> Array:
    """An array that no kernel has written: a NaN with a payload of its own, or 0xCB in every byte."""
    kind = numpy_dtype(dtype)
    array = np.empty(extents, kind)
    array.view(_bits(kind))[...] = _poison_pattern(kind)
    return array


def poison_word(dtype: str) -> int:
    """The 32-bit pattern that fills memory with poison of a type."""
    kind = numpy_dtype(dtype)
    pattern = _poison_pattern(kind).to_bytes(kind.itemsize, "little")
    return int.from_bytes((pattern * 4)[:4], "little")


def judge(
    case: Case, outputs: Mapping[str, Array], inputs_afterwards: Mapping[str, Array] | None = None
) -> Check:
    """The verdict on one run of a kernel. `inputs_afterwards` is what the input buffers hold at its end."""
    worst = Comparison(0.0)
    for name, expected in case.expected.items():
        comparison = compare(outputs[name], expected, case.plain[name], case.tolerance)
        if not comparison.passed:
            return _check(
                case, comparison.error, f"'{name}' is wrong: {comparison.message}", comparison.guard
            )
        worst = max(worst, comparison, key=lambda each: each.error)
    for name, before in case.inputs.items():
        after = (inputs_afterwards or case.inputs)[name]
        if not np.array_equal(_as_bits(before), _as_bits(after)):
            message = f"the input '{name}' was changed in place."
            return _check(case, float("inf"), message, Guard.UNTOUCHED_INPUTS)
    return _check(case, worst.error, "")


def compare(actual: Array, expected: Array, plain: Array, tolerance: Tolerance) -> Comparison:
    """One output against its reference, as `Tolerance` says; integers exactly.

    NaN and infinities pass only where the reference, rounded to the output's precision, has the same.
    """
    if actual.shape != expected.shape:
        return Comparison(float("inf"), f"it has the shape {actual.shape}, not {expected.shape}.")
    if not is_floating(actual.dtype):
        with np.errstate(invalid="ignore"):
            wrong = actual != expected.astype(actual.dtype)
        return _describe(actual, expected, wrong, 1.0 if wrong.any() else 0.0)
    truth = expected.astype(np.float64)
    with np.errstate(all="ignore"):
        representable = truth.astype(actual.dtype)
        error = np.abs(actual.astype(np.float64) - truth)
        settled = (np.isfinite(representable) == 0) & _same_special(actual, representable)
        error[settled] = 0.0
        error[~np.isfinite(error)] = np.inf
        allowed = tolerance.absolute + tolerance.relative * _row_scale(truth)
        excess = np.where(error == 0.0, 0.0, error / allowed)
    worst = float(excess.max(initial=0.0))
    if worst > 1.0:
        return _describe(actual, expected, excess > 1.0, worst)
    yardstick = _plain_error(plain, truth, actual.dtype)
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


def _plain_error(plain: Array, truth: Array, dtype: np.dtype[np.generic]) -> float:
    """The plain reference's largest error, at least half a unit in the last place of the largest value.

    A plain result that happens to be exact, as a single sum may be, is no yardstick for anyone.
    """
    finite = np.isfinite(truth) & np.isfinite(plain)
    if not finite.any():
        return 0.0
    error = np.abs(plain[finite].astype(np.float64) - truth[finite])
    rounding = 0.5 * rounding_unit(dtype) * float(np.abs(truth[finite]).max())
    return max(float(error.max()), rounding)


def _describe(actual: Array, expected: Array, wrong: npt.NDArray[np.bool_], error: float) -> Comparison:
    count = int(wrong.sum())
    if not count:
        return Comparison(error)
    first = np.unravel_index(int(wrong.argmax()), wrong.shape)
    message = (
        f"{count} of {wrong.size} elements, the first at {_index(first)}: "
        f"got {_number(actual[first])}, expected {_number(expected[first])}."
    )
    unwritten = int((wrong & _is_poison(actual)).sum())
    if unwritten:
        share = "all" if unwritten == count else f"{unwritten}"
        message += f" It looks as if {share} of them were never written."
    return Comparison(error, message, Guard.POISON if unwritten else Guard.COMPARISON)


def _row_scale(truth: Array) -> Array:
    if truth.ndim == 0:
        return np.abs(truth)
    magnitude = np.where(np.isfinite(truth), np.abs(truth), 0.0)
    scale: Array = magnitude.max(axis=-1, keepdims=True, initial=0.0)
    return scale


def _same_special(actual: Array, representable: Array) -> npt.NDArray[np.bool_]:
    same: npt.NDArray[np.bool_] = (actual == representable) | (np.isnan(actual) & np.isnan(representable))
    return same & ~_is_poison(actual)


def _special_case(task: Task, shape: Shape, seed: int, values: Values) -> Case | None:
    """A case whose tolerance is widened by what rounding the inputs changes; None where that is too much.

    A constant row, say, makes layer normalisation divide a rounding error by almost nothing: a kernel that
    sums in another order than the reference is not wrong there.
    """
    if task.make_inputs is not None:
        return None
    case = draw_case(task, shape, seed, values)
    rng = np.random.default_rng(seed)
    nudged = {name: _nudge(array, rng) for name, array in case.inputs.items()}
    with np.errstate(all="ignore"):
        moved = task.expected(nudged, shape)
    strict = replace(task.tolerance, ratio=float("inf"))
    errors = [
        compare(moved[tensor.name], case.expected[tensor.name], case.plain[tensor.name], strict).error
        for tensor in task.outputs
        if is_floating(numpy_dtype(tensor.dtype)) and (strict.absolute or strict.relative)
    ]
    widening = ROUNDINGS * max(errors, default=0.0)
    if not widening <= MAX_WIDENING:
        return None
    wider = max(1.0, widening)
    tolerance = replace(
        task.tolerance, relative=task.tolerance.relative * wider, absolute=task.tolerance.absolute * wider
    )
    return replace(case, tolerance=tolerance)


def _nudge(array: Array, rng: np.random.Generator) -> Array:
    """Every element moved by one rounding of its precision, up or down at random, in float64."""
    if not is_floating(array.dtype):
        return array
    step = rounding_unit(array.dtype) * rng.choice((-0.5, 0.5), array.shape)
    moved: Array = array.astype(np.float64) * (1.0 + step)
    return moved


def _special(tensor: Tensor, shape: Shape, drawn: Array, values: Values, rng: np.random.Generator) -> Array:
    if tensor.distribution != "normal":
        low, high = tensor.limits(shape)
        limits = {Values.LARGE: high, Values.SMALL: low, Values.ZERO: low}
        if values in limits:
            return np.full_like(drawn, limits[values])
        return np.ascontiguousarray(np.broadcast_to(drawn[..., :1], drawn.shape))
    match values:
        case Values.LARGE:
            return np.asarray(drawn * drawn.dtype.type(64))
        case Values.SMALL:
            return np.asarray(drawn * drawn.dtype.type(2.0**-10))
        case Values.ZERO:
            return np.zeros_like(drawn)
        case _:
            # Powers of two, so that sums are exact in every order.
            rows = rng.choice((-2.0, -1.0, -0.5, 0.5, 1.0, 2.0), (*drawn.shape[:-1], 1)).astype(drawn.dtype)
            return np.ascontiguousarray(np.broadcast_to(rows, drawn.shape))


def _in_float64(inputs: Mapping[str, Array]) -> dict[str, Array]:
    return {
        name: array.astype(np.float64) if is_floating(array.dtype) else array
        for name, array in inputs.items()
    }


def _in_arithmetic_precision(inputs: Mapping[str, Array]) -> dict[str, Array]:
    return {name: array.astype(arithmetic_dtype(array.dtype), copy=False) for name, array in inputs.items()}


def _rounded(task: Task, outputs: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs as a kernel stores them: floats in the precision of their tensor."""
    dtypes = {tensor.name: numpy_dtype(tensor.dtype) for tensor in task.outputs}
    return {
        name: array.astype(dtypes[name], copy=False) if is_floating(dtypes[name]) else array
        for name, array in outputs.items()
    }


def _check(case: Case, error: float, message: str, guard: Guard | None = None) -> Check:
    sentence = f"At {case.label} (seed {case.seed}), {message}" if message else ""
    return Check(shape_label(case.shape), case.seed, not message, error, sentence, guard)


def _bits(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    return np.dtype(f"u{dtype.itemsize}")


def _as_bits(array: Array) -> Array:
    return np.ascontiguousarray(array).view(_bits(array.dtype))


def _poison_pattern(dtype: np.dtype[np.generic]) -> int:
    return _QUIET_NAN.get(dtype.name, int.from_bytes(b"\xcb" * dtype.itemsize, "little"))


_QUIET_NAN = {
    "float16": 0x7FCB,
    "bfloat16": 0x7FCB,
    "float32": 0x7FCBCBCB,
    "float64": 0x7FFCCBCB7FFCCBCB,
}
"""A quiet NaN of each type with a payload that arithmetic doesn't give; repeats in every 32-bit word."""


def _is_poison(array: Array) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = np.asarray(_as_bits(array) == _poison_pattern(array.dtype))
    return found.reshape(array.shape)


def _index(index: Sequence[np.intp]) -> str:
    return "[" + ", ".join(str(int(i)) for i in index) + "]"


def _number(value: object) -> str:
    return f"{value:.9g}" if isinstance(value, np.floating) else str(value)
