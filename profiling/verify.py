"""Verification: compare what a kernel wrote with the reference, for every language and device.

A case is one set of fresh inputs with the expected outputs. A device poisons the outputs, runs the kernel on a copy of
the inputs, and returns the contents of both afterwards; `check_outputs` compares them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mctskernel.core.contract_words import precision_sentence
from mctskernel.core.dtypes import is_floating, numpy_dtype
from mctskernel.core.evaluation import Check, Guard
from mctskernel.core.task import Array, Chosen, Shape, Task, TaskError, Tensor, Tolerance, shape_label
from mctskernel.profiling.comparison import (
    Deviation,
    Mask,
    Noise,
    compare,
    in_arithmetic_precision,
    in_float64,
    nearest_truth,
)
from mctskernel.profiling.input_values import (
    CONTRACTED,
    FIRST,
    IN_TURN,
    Scattered,
    Values,
    applicable,
    as_bits,
    is_drawn_float,
    places,
    scattered,
    widened,
    with_values,
    without_digits,
)
from mctskernel.profiling.propagation import settle

HELD_OUT_SEED = 1 << 40
TRIES, MOST_BYTES = 6, 16 << 20
"""How many cases are drawn to find those in which digits matter, and bytes of inputs above which only one is."""

AS_DRAWN = frozenset({Values.DRAWN, Values.NAN, Values.INFINITY})
"""Values that are as drawn, but for a few places."""

PRECISE = frozenset({Values.FULL_PRECISION, Values.LARGE_FULL_PRECISION})
"""Values made to find lower precision."""

_CLOSE = 2.0**-6
"""An error, relative to the largest number, that lower precision rather than another mistake makes."""

_ROWS = 4
_EXACT = Tolerance(relative=0.0, absolute=0.0)


@dataclass(frozen=True)
class Case:
    """Inputs and expected outputs.

    `expected` is the reference on float64 inputs, `plain` the reference in the inputs' own precision, whose
    error is the yardstick of the ratio test. Each element may be what one of the `alternatives` has instead, and
    anything where it is `unsettled`. What is `in_place` is an input that the result replaces. `precision` says which
    products are allowed in lower precision.
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
    noise: Noise | None = None
    in_place: frozenset[str] = frozenset()
    precision: str = ""

    @property
    def label(self) -> str:
        """The shape, and the values where they are special."""
        label = shape_label(self.shape)
        return label if self.values is Values.DRAWN else f"{label}, {self.values} values"


def draw_cases(task: Task, shapes: Sequence[Shape], seed: int, turns: int = 1) -> tuple[Case, ...]:
    """For each shape a case of drawn values, small shapes first; special values for the larger ones.

    Each shape also gets numbers of full precision, and the largest those in which each input's digits matter most and
    some beyond the ranges that they are drawn from. Of special values there are those that every task gets, those that
    its numerical contract asks for, and `turns` of the others, by the seed. They are left out where the task makes its
    own inputs and doesn't ask, and where the plain reference itself fails.
    """
    shapes = sorted(shapes, key=task.compulsory_bytes)
    count = 3 * len(shapes) + 2 + len(CONTRACTED) + len(IN_TURN)
    seeds = (int(word) for word in np.random.SeedSequence(seed).generate_state(count))
    cases: list[list[Case]] = [[] for _ in shapes]
    for index, shape in enumerate(shapes):
        cases[index].append(draw_case(task, shape, next(seeds)))
        cases[index] += draw_special_case(task, shape, next(seeds), Values.FULL_PRECISION)
        left = len(shapes) - 1 - index
        if left < len(FIRST):
            cases[index] += draw_special_case(task, shape, next(seeds), FIRST[left])
    cases[-1] += draw_special_case(task, shapes[-1], next(seeds), Values.WIDENED)
    cases[-1] += _sensitive_cases(task, shapes[-1], next(seeds))
    spacious = _spacious(task, shapes)
    for turn, values in enumerate(CONTRACTED):
        index = spacious[(seed + turn) % len(spacious)]
        cases[index] += draw_special_case(task, shapes[index], next(seeds), values)
    for turn in range(len(IN_TURN)):
        if turns:
            index = spacious[(seed + turn) % len(spacious)]
            found = draw_special_case(task, shapes[index], next(seeds), IN_TURN[(seed + turn) % len(IN_TURN)])
            cases[index] += found
            turns -= len(found)
    return tuple(case for group in cases for case in group)


def draw_verification(task: Task, seed: int) -> tuple[Case, ...]:
    """The cases that a device verifies on: at the verify shapes, of all values where the task is thorough."""
    return draw_cases(task, task.verify_shapes, seed, turns=len(IN_TURN) if task.thorough else 1)


def draw_case(task: Task, shape: Shape, seed: int, values: Values = Values.DRAWN) -> Case:
    """Fresh inputs at one shape with expected outputs. Raises TaskError where the reference can't take them."""
    rng = np.random.default_rng(seed)
    source = widened_task(task, shape, seed) if values is Values.WIDENED else task
    drawn = source.draw_inputs(shape, seed)
    if values in {Values.NAN, Values.INFINITY}:
        return _propagating_case(task, shape, seed, drawn, values)
    inputs = with_values(task, shape, drawn, values, rng)
    return expect(task, shape, seed, inputs, values)


def expect(
    task: Task,
    shape: Shape,
    seed: int,
    inputs: Mapping[str, Array],
    values: Values = Values.DRAWN,
    *,
    part_of: Shape | None = None,
    part: Chosen | None = None,
) -> Case:
    """A case of given inputs and outputs, or `part` of each; tolerances are the shape's, or of what it is `part_of`."""
    with np.errstate(all="ignore"):
        expected = task.expected(in_float64(inputs), shape, part)
        plain = _rounded(task, task.expected(in_arithmetic_precision(inputs), shape, part))
    return Case(
        shape,
        seed,
        values,
        inputs,
        expected,
        plain,
        {
            tensor.name: _tolerance_of(task, tensor, part_of or shape, as_drawn=values in AS_DRAWN)
            for tensor in task.outputs
        },
        in_place=task.in_place,
        precision=precision_sentence(task),
        noise=Noise(
            task,
            shape,
            seed,
            lambda: inputs,
            expected,
            equal=values in FIRST and any(map(_is_constant, inputs.values())),
            stored=values not in AS_DRAWN,
        ),
    )


def check_outputs(
    case: Case, outputs: Mapping[str, Array], inputs_afterwards: Mapping[str, Array] | None = None
) -> Check:
    """Check one run of a kernel. `inputs_afterwards` is what the input buffers hold at its end."""
    worst = Deviation(0.0)
    for name in case.expected:
        comparison = _compared(case, name, outputs[name])
        if not comparison.passed:
            message = f"'{name}' is wrong: {comparison.message}"
            finite = case.values in PRECISE and np.isfinite(comparison.error)
            if finite and _share(outputs[name], case.expected[name]) < _CLOSE:
                message += f" {case.precision}"
            return _check(case, comparison.error, message, comparison.guard)
        worst = max(worst, comparison, key=lambda each: each.error)
    for name in case.inputs.keys() - case.in_place:
        before, after = case.inputs[name], (inputs_afterwards or case.inputs)[name]
        if not np.array_equal(as_bits(before), as_bits(after)):
            message = f"the input '{name}' was changed in place."
            return _check(case, float("inf"), message, Guard.UNTOUCHED_INPUTS)
    return _check(case, worst.error, "")


def _compared(case: Case, name: str, actual: Array) -> Deviation:
    truth = case.expected[name]
    if name in case.alternatives and actual.shape == truth.shape:
        truth = nearest_truth(actual, truth, case.alternatives[name], case.unsettled.get(name))
    plain, tolerance = case.plain[name], case.tolerances[name]
    if case.noise is None or not is_floating(actual.dtype):
        return compare(actual, truth, plain, tolerance)
    # Most kernels pass as if nothing cancelled anywhere, and the noise costs some calls of the reference.
    found = compare(actual, truth, plain, tolerance, noise=np.zeros(()))
    if found.passed or not (tolerance.relative or tolerance.absolute):
        return found
    if name in case.noise.of_products:
        found = compare(actual, truth, plain, tolerance, noise=case.noise.of_products[name])
        if found.passed:
            return found
    return compare(actual, truth, plain, tolerance, noise=case.noise.of_outputs.get(name))


def _propagating_case(
    task: Task, shape: Shape, seed: int, drawn: Mapping[str, Array], values: Values
) -> Case:
    name, special = places(task, drawn, values, np.random.default_rng(seed))
    array = drawn[name]
    inputs = {**drawn, name: np.where(special != 0, special.astype(array.dtype), array)}
    return expect_propagated(task, shape, seed, inputs, (name, special))


def expect_propagated(
    task: Task,
    shape: Shape,
    seed: int,
    inputs: Mapping[str, Array],
    special: tuple[str, Any],
    *,
    part_of: Shape | None = None,
    part: Chosen | None = None,
) -> Case:
    """A case of given inputs, one of which, by name, holds NaN or infinities: those that an array has, 0 elsewhere."""
    values = Values.NAN if np.isnan(float(special[1].min())) else Values.INFINITY
    settled = settle(task, shape, in_float64(inputs), *special, part=part)
    return replace(
        expect(task, shape, seed, inputs, values, part_of=part_of, part=part),
        alternatives=settled.alternatives,
        unsettled=settled.unsettled,
    )


def scattered_values(task: Task, shape: Shape, values: Values, seed: int) -> Scattered | None:
    """Special values for a large shape; none without an independent dimension, or if the reference fails."""
    rng = np.random.default_rng((seed, 2))
    found = scattered(task, shape, values, rng) if applicable(task, values) else None
    small = min(task.verify_shapes, key=task.compulsory_bytes, default=None)
    return found if small is not None and draw_special_case(task, small, seed, values) else None


def widened_task(task: Task, shape: Shape, seed: int) -> Task:
    """The task with inputs drawn from elsewhere, each that the reference can take so at a shape.

    There is no logarithm of a negative number, say. Where a task makes its own inputs it stays as it is.
    """
    if task.make_inputs is not None:
        return task
    drawn = in_float64(task.draw_inputs(shape, seed))
    for index, tensor in enumerate(task.inputs):
        if is_drawn_float(tensor):
            others = (*task.inputs[:index], widened(tensor, shape), *task.inputs[index + 1 :])
            wider = replace(task, inputs=others)
            given = {**drawn, **in_float64(wider.draw_inputs(shape, seed, {tensor.name}))}
            with suppress(TaskError), np.errstate(all="ignore"):
                found = task.expected(given, shape)
                if all(map(_is_finite, found.values())):
                    task, drawn = wider, given
    return task


def _sensitive_cases(task: Task, shape: Shape, seed: int) -> tuple[Case, ...]:
    """Of some cases with large numbers of full precision, for each input the one in which its digits matter most."""
    if not applicable(task, Values.LARGE_FULL_PRECISION):
        return ()
    seeds = [int(word) for word in np.random.SeedSequence(seed).generate_state(TRIES)]
    best: dict[str, tuple[float, Case]] = {}
    for each in seeds[: 1 if sum(tensor.nbytes(shape) for tensor in task.inputs) > MOST_BYTES else TRIES]:
        for case in draw_special_case(task, shape, each, Values.LARGE_FULL_PRECISION):
            wide = in_float64(case.inputs)
            for name in wide:
                with np.errstate(all="ignore"):
                    found = task.expected({**wide, name: without_digits(wide[name])}, shape)
                share = max(_share(found[out], truth) for out, truth in case.expected.items())
                if share > best.get(name, (0.0,))[0]:
                    best[name] = share, case
    return tuple({case.seed: case for _, case in best.values()}.values())


def _share(changed: Array, truth: Array) -> float:
    """The largest change, as a fraction of the largest number."""
    with np.errstate(all="ignore"):
        change = np.abs(changed.astype(np.float64) - truth.astype(np.float64)).max(initial=0.0)
        return float(np.nan_to_num(change / np.abs(truth.astype(np.float64)).max(initial=0.0)))


def _is_constant(array: Array) -> bool:
    """Whether the numbers of each row are equal."""
    return array.ndim > 0 and array.shape[-1] > 1 and bool((array == array[..., :1]).all())


def _is_finite(array: Array) -> bool:
    return bool(np.isfinite(array).all())


def _spacious(task: Task, shapes: Sequence[Shape]) -> range | list[int]:
    """Indices of shapes, by size, in the upper half but the largest, with at least four independent rows."""
    upper = range(len(shapes) // 2, max(len(shapes) - 1, len(shapes) // 2 + 1))
    if not task.independent:
        return upper
    return [index for index in upper if shapes[index][task.independent] >= _ROWS] or upper


def draw_special_case(task: Task, shape: Shape, seed: int, values: Values) -> tuple[Case, ...]:
    """A case of such values in a tuple; none where they aren't applicable, or the plain reference itself fails."""
    if not applicable(task, values):
        return ()
    try:
        case = draw_case(task, shape, seed, values)
    except TaskError:
        # Not every reference can take a NaN: there is no index of that number.
        return ()
    # Digits say nothing of what overflows on the way: a product of many numbers, say.
    outputs = case.plain if values in PRECISE else case.expected
    if values not in {*CONTRACTED, *FIRST} and not all(map(_is_finite, outputs.values())):
        return ()
    return (case,) if check_outputs(case, case.plain).passed else ()


def _tolerance_of(task: Task, output: Tensor, shape: Shape, *, as_drawn: bool) -> Tolerance:
    """Integers and truth values are exact, unless they have a tolerance of their own.

    An element's own size bounds those made of drawn numbers only, since others cancel.
    """
    if not is_floating(numpy_dtype(output.dtype)):
        return task.tolerances.get(output.name, _EXACT)
    tolerance = task.tolerance_of(output.name, shape)
    return tolerance if as_drawn else replace(tolerance, element=None)


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
