"""Values at a shape that is timed: inputs to run some blocks on, and whether what these wrote is right."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from mctskernel.core.dtypes import numpy_dtype
from mctskernel.core.evaluation import Check, Guard
from mctskernel.core.task import Array, Shape, Task, shape_label
from mctskernel.profiling.verify import Case, expect, judge

MOST_ELEMENTS = 1 << 16
"""About how many elements of an output are compared."""

DRAWN_ELEMENTS = (3 << 20, 4 << 20)
"""Between so many elements of an input are drawn, an odd number, and repeated as often as it takes. Which number it is
follows from the seed: whoever knew it could leave out what repeats."""

SECOND_LOOKS = 6
"""Times that an output is looked at which another launch may still change, and seems to leave alone."""


@dataclass(frozen=True)
class TimedInputs:
    """Fresh inputs at one timed shape, drawn when they are first asked for."""

    task: Task
    shape: Shape
    seed: int

    @cached_property
    def inputs(self) -> Mapping[str, Array]:
        """Large ones repeat themselves, unless the task makes its inputs itself."""
        task, shape = self.task, self.shape
        if task.make_inputs is not None:
            return task.draw_inputs(shape, self.seed)
        drawn_elements = int(np.random.default_rng(self.seed).integers(*DRAWN_ELEMENTS)) | 1
        extents = {tensor.name: tensor.extents(shape) for tensor in task.inputs}
        short = tuple(
            replace(tensor, shape=(min(math.prod(extents[tensor.name]), drawn_elements),))
            for tensor in task.inputs
        )
        drawn = replace(task, inputs=short).draw_inputs(shape, self.seed)
        return {name: np.resize(array, extents[name]) for name, array in drawn.items()}

    @cached_property
    def whole(self) -> Case:
        """With everything that they must give; only for a task without an independent dimension."""
        return expect(self.task, self.shape, self.seed, self.inputs)

    def failed(self, message: str, guard: Guard = Guard.TIMED_OUTPUTS) -> Check:
        """A check of a kernel that failed here; the message is a sentence."""
        label = shape_label(self.shape)
        sentence = f"At {label} (seed {self.seed}), where it is timed: {message}"
        return Check(label, self.seed, passed=False, error=float("inf"), message=sentence, guard=guard)


@dataclass(frozen=True)
class Written:
    """An output as some blocks left it, and which of its elements they should have written."""

    values: Array
    mask: Array


def verdict(
    drawn: TimedInputs,
    written: Mapping[str, Written],
    tentative: Set[str],
    rng: np.random.Generator,
) -> Check | str:
    """Whether what was written is right, at places that `rng` chooses; a sentence where that can't be told.

    What a later launch may still mend here and there is `tentative`, and wrong if it is so wherever one looks.
    """
    check = _judged(drawn, written, MOST_ELEMENTS, rng)
    if check.passed or tentative.isdisjoint(written):
        return check
    finished = {name: each for name, each in written.items() if name not in tentative}
    if finished and not (certain := _judged(drawn, finished, MOST_ELEMENTS, rng)).passed:
        return certain
    if any(_judged(drawn, written, 0, rng).passed for _ in range(SECOND_LOOKS)):
        return "a later launch mends what an earlier one leaves"
    return check


def _judged(drawn: TimedInputs, written: Mapping[str, Written], most: int, rng: np.random.Generator) -> Check:
    """Compare what was written at some indices of the independent dimension, or of the first one of each output.

    That is at about so many elements, and at two indices at the least.
    """
    task = drawn.task
    if task.independent:
        axes = {
            tensor.name: tensor.shape.index(task.independent)
            for tensor in (*task.inputs, *task.outputs)
            if task.independent in tensor.shape
        }
        touched = np.unique(np.concatenate([_touched(each, axes[name]) for name, each in written.items()]))
        widest = max(each.mask.size // each.mask.shape[axes[name]] for name, each in written.items())
        few = _few(touched, most // widest, rng)
        inputs = {
            name: np.take(array, few, axes[name]) if name in axes else array
            for name, array in drawn.inputs.items()
        }
        shape = {**drawn.shape, task.independent: len(few)}
        case = expect(task, shape, drawn.seed, inputs, part_of=drawn.shape)
        parts = {name: _part(each, few, axes[name]) for name, each in written.items()}
    else:
        rows = {
            name: _few(_touched(each, 0), most * len(each.mask) // each.mask.size, rng)
            for name, each in written.items()
        }
        case = drawn.whole
        case = replace(case, expected=_rows(case.expected, rows), plain=_rows(case.plain, rows), places=rows)
        parts = {name: _part(each, rows[name], 0) for name, each in written.items()}
    outputs = {}
    for tensor in task.outputs:
        right = case.expected[tensor.name].astype(numpy_dtype(tensor.dtype))
        part = parts.get(tensor.name)
        outputs[tensor.name] = right if part is None else np.where(part.mask, part.values, right)
    check = judge(replace(case, shape=drawn.shape, inputs={}), outputs)
    return check if check.passed else replace(check, guard=Guard.TIMED_OUTPUTS)


def _part(written: Written, indices: Array, axis: int) -> Written:
    return Written(np.take(written.values, indices, axis), np.take(written.mask, indices, axis))


def _rows(truth: Mapping[str, Array], rows: Mapping[str, Array]) -> dict[str, Array]:
    """Rows of outputs; none of those that nothing is known of."""
    return {name: array[rows.get(name, slice(0))] for name, array in truth.items()}


def _touched(written: Written, axis: int) -> Array:
    """Indices along an axis at which something was written."""
    others = tuple(each for each in range(written.mask.ndim) if each != axis)
    return np.flatnonzero(written.mask.any(axis=others))


def _few(indices: Array, most: int, rng: np.random.Generator) -> Array:
    """So many of the indices at random, two at the least."""
    most = max(2, most)
    return indices if len(indices) <= most else np.sort(rng.choice(indices, most, replace=False))
