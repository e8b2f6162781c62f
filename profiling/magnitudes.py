"""How large the numbers are that reach each element of an output, for outputs of a single row.

A tolerance is a share of a row's largest result, since a sum's error follows its terms and not what is left when they
cancel. Where a whole output is one row, a single huge element would then excuse errors of all the others. So there
each element has a measure of its own: how far it moves when every input moves by a small fraction of itself, and how
far the plain reference is off, in roundings. Both are large where large terms cancel, and otherwise as the element is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mctskernel.core.dtypes import arithmetic_dtype, is_floating, numpy_dtype, rounding_unit
from mctskernel.core.task import Array, Shape, Task, TaskError

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

    That takes nine calls of the reference, five where inputs are `LARGE`: whoever can tell without shouldn't ask.
    """

    task: Task
    shape: Shape
    seed: int
    inputs: Callable[[], Mapping[str, Array]]

    @cached_property
    def of_outputs(self) -> Mapping[str, Array]:
        """For each floating-point output of one row an array of its shape; none where no input is floating-point.

        Infinite where nothing can be told, as beside a NaN.
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
        unit = 0.5 * max(rounding_unit(_computed_in(array)) for array in inputs.values() if _moves(array))
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
    return {name: array.astype(np.float64) if _moves(array) else array for name, array in inputs.items()}


def _moves(array: Array) -> bool:
    return is_floating(array.dtype)


def _computed_in(array: Array) -> np.dtype[np.generic]:
    return arithmetic_dtype(array.dtype)


def _moved(array: Array, ways: Sequence[float], rng: np.random.Generator) -> Array:
    """In the precision that a plain implementation computes in; which way repeats itself in large arrays."""
    if not _moves(array):
        return array
    factors = (1.0 + FRACTION * rng.choice(ways, min(array.size, DRAWN_WAYS))).astype(_computed_in(array))
    return np.asarray(array.astype(_computed_in(array), copy=False) * np.resize(factors, array.shape))
