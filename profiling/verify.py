"""Verification: compare what a kernel wrote with the reference, for every language and device.

A case is one set of fresh inputs with the expected outputs. A device poisons the outputs, runs the kernel on a copy of
the inputs, and returns the contents of both afterwards; `check_outputs` compares them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mctskernel.core.dtypes import (
    arithmetic_dtype,
    is_floating,
    numpy_dtype,
    rounding_unit,
    smallest_denormal,
    smallest_normal,
)
from mctskernel.core.evaluation import Check, Guard
from mctskernel.core.task import (
    Array,
    Denormals,
    Shape,
    SignedZero,
    Task,
    TaskError,
    Tensor,
    Tolerance,
    shape_label,
)
from mctskernel.profiling.comparison import (
    NUDGES,
    Comparison,
    Magnitudes,
    Mask,
    compare,
    compare_signs_of_zero,
    in_float64,
    is_single_row,
    nearest_truth,
)
from mctskernel.profiling.input_values import (
    CONTRACTED,
    FIRST,
    IN_TURN,
    Values,
    applicable,
    as_bits,
    flush,
    places,
    with_values,
)
from mctskernel.profiling.propagation import settle

HELD_OUT_SEED = 1 << 40
MAX_WIDENING = 1000.0
ROUNDINGS = 4.0
_ROWS = 4
_EXACT = Tolerance(relative=0.0, absolute=0.0)


@dataclass(frozen=True)
class Case:
    """Inputs and expected outputs.

    `expected` is the reference on float64 inputs, `plain` the reference in the inputs' own precision, whose
    error is the yardstick of the ratio test. Each element may be what one of the `alternatives` has instead, and
    anything where it is `unsettled`. What rounding the inputs changes is the least of `yardsticks`: numbers whose
    signs alternate, say, leave a running sum no error and sums in another order some. What is `in_place` is an input
    that the result replaces.
    """

    shape: Shape
    seed: int
    values: Values
    inputs: Mapping[str, Array]
    expected: Mapping[str, Array]
    plain: Mapping[str, Array]
    tolerances: Mapping[str, Tolerance]
    alternatives: Mapping[str, tuple[Array, ...]] = field(default_factory=dict)
    unsettled: Mapping[str, Mask] = field(default_factory=dict)
    yardsticks: Mapping[str, Array] = field(default_factory=dict)
    magnitudes: Magnitudes | None = None
    places: Mapping[str, Array] = field(default_factory=dict)
    in_place: frozenset[str] = frozenset()
    signed_zero: SignedZero = SignedZero.UNSPECIFIED

    @property
    def label(self) -> str:
        """The shape, and the values where they are special."""
        label = shape_label(self.shape)
        return label if self.values is Values.DRAWN else f"{label}, {self.values} values"


def draw_cases(
    task: Task, shapes: Sequence[Shape], seed: int, draws: int = 1, turns: int = 1
) -> tuple[Case, ...]:
    """For each shape `draws` cases of drawn values, small shapes first; special values for the larger ones.

    Of special values there are those that every task gets, those that its numerical contract asks for, and `turns` of
    the others, by the seed. They are left out where the task makes its own inputs and doesn't ask, and where rounding
    the inputs would change the result too much.
    """
    shapes = sorted(shapes, key=task.compulsory_bytes)
    count = len(shapes) * (draws + 1) + len(CONTRACTED) + len(IN_TURN)
    seeds = (int(word) for word in np.random.SeedSequence(seed).generate_state(count))
    cases: list[list[Case]] = [[] for _ in shapes]
    for index, shape in enumerate(shapes):
        cases[index] += [draw_case(task, shape, next(seeds)) for _ in range(draws)]
        left = len(shapes) - 1 - index
        if left < len(FIRST):
            cases[index] += draw_widened_case(task, shape, next(seeds), FIRST[left])
    spacious = _spacious(task, shapes)
    for turn, values in enumerate(CONTRACTED):
        index = spacious[(seed + turn) % len(spacious)]
        cases[index] += draw_widened_case(task, shapes[index], next(seeds), values)
    for turn in range(len(IN_TURN)):
        if turns:
            index = spacious[(seed + turn) % len(spacious)]
            found = draw_widened_case(task, shapes[index], next(seeds), IN_TURN[(seed + turn) % len(IN_TURN)])
            cases[index] += found
            turns -= len(found)
    return tuple(case for group in cases for case in group)


def draw_verification(task: Task, seed: int) -> tuple[Case, ...]:
    """The cases that a device verifies on: at the verify shapes, of all values where the task is thorough."""
    return draw_cases(task, task.verify_shapes, seed, turns=len(IN_TURN) if task.thorough else 1)


def draw_case(task: Task, shape: Shape, seed: int, values: Values = Values.DRAWN) -> Case:
    """Fresh inputs at one shape with expected outputs. Raises TaskError where the reference can't take them."""
    rng = np.random.default_rng(seed)
    drawn = task.draw_inputs(shape, seed)
    if values in {Values.NAN, Values.INFINITY}:
        return _propagating_case(task, shape, seed, drawn, values)
    inputs = with_values(task, shape, drawn, values, rng)
    case = expect(task, shape, seed, inputs, values)
    if values is Values.DENORMAL and task.numerics.denormals is Denormals.FLUSH:
        with np.errstate(all="ignore"):
            flushed = task.expected(in_float64({name: flush(array) for name, array in inputs.items()}), shape)
        return replace(case, alternatives={name: (array,) for name, array in flushed.items()})
    return case


def expect(
    task: Task,
    shape: Shape,
    seed: int,
    inputs: Mapping[str, Array],
    values: Values = Values.DRAWN,
    *,
    part_of: Shape | None = None,
) -> Case:
    """A case of given inputs with their expected outputs.

    The tolerance is that of the shape, or of the one that the inputs are `part_of`.
    """
    with np.errstate(all="ignore"):
        expected = task.expected(in_float64(inputs), shape)
        plain = _rounded(task, task.expected(_in_arithmetic_precision(inputs), shape))
    return Case(
        shape,
        seed,
        values,
        inputs,
        expected,
        plain,
        {tensor.name: _tolerance_of(task, tensor, part_of or shape) for tensor in task.outputs},
        in_place=task.in_place,
        signed_zero=task.numerics.signed_zero,
        magnitudes=Magnitudes(task, shape, seed, lambda: inputs),
    )


def check_outputs(
    case: Case, outputs: Mapping[str, Array], inputs_afterwards: Mapping[str, Array] | None = None
) -> Check:
    """Check one run of a kernel. `inputs_afterwards` is what the input buffers hold at its end."""
    worst = Comparison(0.0)
    for name in case.expected:
        comparison = _compared(case, name, outputs[name])
        if not comparison.passed:
            return _check(
                case, comparison.error, f"'{name}' is wrong: {comparison.message}", comparison.guard
            )
        worst = max(worst, comparison, key=lambda each: each.error)
    for name in case.inputs.keys() - case.in_place:
        before, after = case.inputs[name], (inputs_afterwards or case.inputs)[name]
        if not np.array_equal(as_bits(before), as_bits(after)):
            message = f"the input '{name}' was changed in place."
            return _check(case, float("inf"), message, Guard.UNTOUCHED_INPUTS)
    return _check(case, worst.error, "")


def _compared(case: Case, name: str, actual: Array) -> Comparison:
    truth = case.expected[name]
    if name in case.alternatives and actual.shape == truth.shape:
        truth = nearest_truth(actual, truth, case.alternatives[name], case.unsettled.get(name))
    comparison = _compared_numbers(case, name, actual, truth)
    if comparison.passed and case.signed_zero is SignedZero.PRESERVE and is_floating(actual.dtype):
        signs = compare_signs_of_zero(actual, truth)
        return comparison if signs.passed else signs
    return comparison


def _compared_numbers(case: Case, name: str, actual: Array, truth: Array) -> Comparison:
    plain, tolerance, least = case.plain[name], case.tolerances[name], case.yardsticks.get(name, 0.0)
    if case.magnitudes is None or not is_single_row(truth.shape) or not is_floating(actual.dtype):
        return compare(actual, truth, plain, tolerance, least_yardstick=least)
    # Most kernels pass as if nothing cancelled anywhere, and magnitudes cost some calls of the reference.
    closely = compare(actual, truth, truth, tolerance, magnitudes=np.abs(truth))
    if closely.passed or not tolerance.relative:
        return closely
    found = case.magnitudes.of_outputs.get(name)
    if found is not None and truth.ndim == 1 and name in case.places:
        found = found[case.places[name]]
    return compare(
        actual,
        truth,
        plain,
        tolerance,
        least_yardstick=least,
        magnitudes=None if found is None else found.reshape(truth.shape),
    )


def _propagating_case(
    task: Task, shape: Shape, seed: int, drawn: Mapping[str, Array], values: Values
) -> Case:
    name, special = places(task, drawn, values, np.random.default_rng(seed))
    array = drawn[name]
    inputs = {**drawn, name: np.where(special != 0, special.astype(array.dtype), array)}
    settled = settle(task, shape, in_float64(drawn), name, special)
    return replace(
        expect(task, shape, seed, inputs, values),
        alternatives=settled.alternatives,
        unsettled=settled.unsettled,
    )


def _spacious(task: Task, shapes: Sequence[Shape]) -> range | list[int]:
    """The indices of shapes, by size, where a special value has neighbours: not the smaller half, and not the largest.

    Where there is an independent dimension, it is of at least four.
    """
    upper = range(len(shapes) // 2, max(len(shapes) - 1, len(shapes) // 2 + 1))
    if not task.independent:
        return upper
    return [index for index in upper if shapes[index][task.independent] >= _ROWS] or upper


def draw_widened_case(task: Task, shape: Shape, seed: int, values: Values) -> tuple[Case, ...]:
    """A case whose tolerance is widened by what rounding the inputs changes, in a tuple; none where that is too much.

    A constant row, say, makes layer normalisation divide a rounding error by almost nothing: a kernel that
    sums in another order than the reference is not wrong there.
    """
    if not applicable(task, values):
        return ()
    try:
        case = draw_case(task, shape, seed, values)
        rng = np.random.default_rng(seed)
        with np.errstate(all="ignore"):
            moved = [
                task.expected({name: _nudge(array, ways, rng) for name, array in case.inputs.items()}, shape)
                for ways in NUDGES
            ]
    except TaskError:
        # Not every reference can take a NaN: there is no index of that number.
        return ()
    # A bound of each element by its own size is for the values that are drawn: others cancel.
    tolerances = {name: replace(_at_scale(task, case, name), element=None) for name in case.expected}
    wider = 1.0
    for name, tolerance in tolerances.items():
        if case.plain[name].dtype.kind not in "biu" and (tolerance.absolute or tolerance.relative):
            # Compared as a kernel's results are, but in the precision of the truth.
            alone = {name: replace(tolerance, ratio=float("inf"))}
            strict = replace(case, tolerances=alone, signed_zero=SignedZero.UNSPECIFIED)
            errors = [_compared(strict, name, each[name]).error for each in moved]
            wider = max(wider, *(ROUNDINGS * error for error in errors))
    if not wider <= MAX_WIDENING:
        return ()
    widened = {
        name: replace(each, relative=each.relative * wider, absolute=each.absolute * wider)
        for name, each in tolerances.items()
    }
    with np.errstate(invalid="ignore"):
        yardsticks = {
            tensor.name: np.nan_to_num(
                np.max([np.abs(each[tensor.name] - case.expected[tensor.name]) for each in moved], axis=0),
                posinf=0.0,
            )
            for tensor in task.outputs
            if is_floating(numpy_dtype(tensor.dtype))
        }
    return (replace(case, tolerances=widened, yardsticks=yardsticks),)


def _at_scale(task: Task, case: Case, name: str) -> Tolerance:
    """The tolerance where results may be so small that its absolute part would let anything through."""
    tolerance = case.tolerances[name]
    tensor = next(each for each in task.outputs if each.name == name)
    dtype = numpy_dtype(tensor.dtype)
    if not is_floating(dtype) or not tolerance.absolute:
        return tolerance
    if case.values is Values.DENORMAL:
        least = smallest_denormal if task.numerics.denormals is Denormals.PRESERVE else smallest_normal
        return replace(tolerance, absolute=min(tolerance.absolute, ROUNDINGS * least(dtype)))
    if case.values is Values.SMALL and "scales" in task.numerics.stated:
        usual = draw_case(task, case.shape, case.seed).expected[name]
        share = _largest(case.expected[name]) / max(_largest(usual), smallest_normal(dtype))
        return replace(tolerance, absolute=tolerance.absolute * min(1.0, share))
    return tolerance


def _largest(array: Array) -> float:
    return float(np.abs(array[np.isfinite(array)]).max(initial=0))


def _nudge(array: Array, ways: Sequence[float], rng: np.random.Generator) -> Array:
    """Every finite element but zeros moved by a rounding of its precision, in one of the ways at random, in float64."""
    if not is_floating(array.dtype):
        return array
    wide = array.astype(np.float64)
    size = np.where(np.isfinite(wide), np.abs(wide), 0.0)
    least = np.where(size == 0, 0.0, 0.5 * smallest_denormal(array.dtype))
    step = np.maximum(0.5 * rounding_unit(array.dtype) * size, least)
    moved: Array = wide + step * rng.choice(ways, array.shape)
    return moved


def _tolerance_of(task: Task, output: Tensor, shape: Shape) -> Tolerance:
    """Integers and truth values are exact, unless they have a tolerance of their own."""
    if is_floating(numpy_dtype(output.dtype)):
        return task.tolerance_of(output.name, shape)
    return task.tolerances.get(output.name, _EXACT)


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
