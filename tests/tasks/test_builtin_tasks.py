"""The built-in tasks are sound, and small enough to be verified without a GPU."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from mctskernel.core.task import Array, Task, TaskError
from mctskernel.core.task_file import load_task
from mctskernel.profiling.comparison import compare
from mctskernel.profiling.verify import draw_case
from mctskernel.tasks.builtin import builtin_tasks, find_task
from mctskernel.tasks.check import check_task

NAMES = tuple(builtin_tasks())

COARSER = {"float32": np.float16, "bfloat16": ml_dtypes.float8_e4m3fn}
"""A type with about half the digits of another one."""


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_wrong_with_it(name: str) -> None:
    assert check_task(find_task(name)).problems == ()


@pytest.mark.parametrize("name", NAMES)
def test_verification_is_small_awkward_and_apart_from_the_held_out_shapes(name: str) -> None:
    task = load_task(find_task(name))
    for shapes in (task.verify_shapes, task.held_out_shapes):
        assert sum(_elements(task, shape) for shape in shapes) <= 300_000
        extents = [extent for shape in shapes for extent in shape.values()]
        assert any(extent % 4 for extent in extents if extent > 4)
        assert any(extent % 32 == 0 for extent in extents)
    assert not [shape for shape in task.verify_shapes if shape in task.held_out_shapes]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_timed_at_last_is_of_the_searchs_size_and_seen_by_no_search(name: str) -> None:
    task = load_task(find_task(name))
    (unseen,), (searched,) = task.held_out_timed_shapes, task.search_shapes
    assert unseen != searched
    assert 0.1 < task.compulsory_bytes(unseen) / task.compulsory_bytes(searched) < 2
    assert task.held_out.search_shapes == (unseen,)
    assert task.held_out.verify_shapes == task.held_out_shapes
    assert task.held_out.thorough
    assert all(shape in task.shapes for shape in task.held_out.shapes)


def _elements(task: Task, shape: dict[str, int]) -> int:
    return sum(math.prod(tensor.extents(shape)) for tensor in (*task.inputs, *task.outputs))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_tolerance_lets_the_plain_reference_pass_and_refuses_half_the_digits(name: str) -> None:
    task = load_task(find_task(name))
    for shape in (*task.verify_shapes, *task.held_out_shapes):
        case = draw_case(task, shape, 3)
        rough = task.expected(
            {key: _with_half_the_digits(array) for key, array in case.inputs.items()}, shape
        )
        for tensor in task.outputs:
            truth, plain = case.expected[tensor.name], case.plain[tensor.name]
            assert compare(plain, truth, plain, task.tolerance).passed
            found = compare(rough[tensor.name].astype(plain.dtype), truth, plain, task.tolerance)
            assert truth.size <= 300 or not truth.any() or not found.passed


def _with_half_the_digits(array: np.ndarray) -> np.ndarray:
    if array.dtype.name not in COARSER:
        return array
    return array.astype(COARSER[array.dtype.name]).astype(np.float64)


def test_a_task_is_found_by_name_folder_or_file(tmp_path: Path) -> None:
    assert find_task("softmax") == builtin_tasks()["softmax"]
    (tmp_path / "task.toml").touch()
    assert find_task(tmp_path) == tmp_path
    assert find_task(str(tmp_path / "task.toml")) == tmp_path


def test_an_unknown_task_gets_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"no task 'sofmax': .* Did you mean 'softmax'\?"):
        find_task("sofmax")
    with pytest.raises(TaskError, match=r"\(attention, .*, transpose\)\.$"):
        find_task("/nowhere/at/all")
    with pytest.raises(TaskError, match=r"is not a task: it has no task\.toml"):
        find_task(tmp_path)


Inputs = Mapping[str, Array]
TASKS = {name: load_task(find_task(name)) for name in NAMES}


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
