"""The references of the built-in tasks hold for a part of a task too."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from mctskernel.core.task import Array
from mctskernel.core.task_file import load_task
from mctskernel.tasks.builtin import builtin_tasks

Inputs = Mapping[str, Array]
TASKS = {name: load_task(folder) for name, folder in builtin_tasks().items()}


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.independent])
def test_a_part_of_the_outputs_follows_from_the_same_part_of_the_inputs(name: str) -> None:
    task = TASKS[name]
    along = task.independent
    for shape in task.verify_shapes:
        inputs = _in_float64(task.draw_inputs(shape, 6))
        whole = task.expected(inputs, shape)
        kept = np.arange(shape[along])[-2:]
        part = {tensor.name: _part(tensor.shape, inputs[tensor.name], along, kept) for tensor in task.inputs}
        found = task.expected(part, {**shape, along: len(kept)})
        for tensor in task.outputs:
            expected = _part(tensor.shape, whole[tensor.name], along, kept)
            np.testing.assert_allclose(found[tensor.name], expected, rtol=1e-12, atol=1e-12)


def _part(extents: tuple[int | str, ...], array: Array, along: str, kept: Array) -> Array:
    return np.take(array, kept, axis=extents.index(along)) if along in extents else array


def _in_float64(inputs: Inputs) -> dict[str, Array]:
    return {
        name: array if array.dtype.kind in "iu" else array.astype(np.float64)
        for name, array in inputs.items()
    }


def test_the_sparse_matrix_has_ascending_columns_and_uneven_rows() -> None:
    task = TASKS["spmv"]
    for shape in (*task.verify_shapes, *task.held_out_shapes):
        inputs = task.draw_inputs(shape, 7)
        offsets, columns = inputs["offsets"], inputs["columns"]
        lengths = np.diff(offsets)
        assert (offsets[0], offsets[-1]) == (0, shape["nonzeros"])
        assert lengths.min() >= 0
        assert columns.min() >= 0
        assert columns.max() < shape["cols"]
        same_row = np.diff(np.repeat(np.arange(shape["rows"]), lengths)) == 0
        assert (np.diff(columns)[same_row] > 0).all()
        if shape["rows"] > 100:
            assert lengths.min() == 0
            assert lengths.max() > 2 * lengths.mean() or lengths.max() == shape["cols"]
