"""The plain suite is sound: every task can be searched, verified cheaply, and described in words."""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from mctskernel.check_task import reference_problems
from mctskernel.core.device import DeviceSpec
from mctskernel.core.evaluation import Evaluation, Outcome
from mctskernel.core.expression import evaluate
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Task, TaskError
from mctskernel.core.task_file import load_task
from mctskernel.experiments.suites.plain_tasks import SUITE, chosen_tasks, plain_tasks
from mctskernel.profiling.comparison import compare
from mctskernel.profiling.devices import open_for_check
from mctskernel.profiling.verify import draw_case
from mctskernel.tasks import builtin_tasks

OWN = tuple(name for name, task in plain_tasks().items() if task.folder.parent == SUITE)


@pytest.fixture(scope="module", params=OWN)
def task(request: pytest.FixtureRequest) -> Task:
    return load_task(SUITE / request.param)


def test_the_suite_has_what_the_setting_asks_for() -> None:
    asked = {
        "dot_product",
        "matrix_copy",
        "transpose",
        "softmax",
        "matmul",
        "conv1d",
        "conv2d",
        "sum",
        "histogram",
    }
    asked |= {"cumsum", "spmv", "stencil", "stencil1d", "stencil3d"}
    assert asked <= plain_tasks().keys()
    assert len(plain_tasks()) >= 24
    assert {file.name for file in SUITE.iterdir() if file.is_dir()} == plain_tasks().keys()


def test_a_task_that_is_built_in_is_that_one_and_not_a_copy() -> None:
    borrowed = {name: task.folder for name, task in plain_tasks().items() if name not in OWN}
    assert borrowed.items() <= builtin_tasks().items()
    assert not OWN & builtin_tasks().keys()


def test_a_description_names_every_tensor_and_dimension() -> None:
    for name, plain in plain_tasks().items():
        task = load_task(plain.folder)
        names = {tensor.name for tensor in (*task.inputs, *task.outputs)} | task.scalars.keys()
        names |= {dimension for shape in task.search_shapes for dimension in shape} - {"nonzeros"}
        said = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`]+`", plain.description))))
        assert names <= said, name
        assert "__global__" not in plain.description


def test_it_says_what_it_is(task: Task) -> None:
    assert task.name == task.folder.name
    assert "Starts with" in task.summary
    assert task.summary.endswith(".")
    assert task.flops is None or evaluate(task.flops, task.search_shapes[0]) > 0


def test_verification_is_small_awkward_and_apart_from_the_held_out_shapes(task: Task) -> None:
    for shapes in (task.verify_shapes, task.held_out_shapes):
        tensors = [tensor.extents(shape) for shape in shapes for tensor in (*task.inputs, *task.outputs)]
        assert sum(math.prod(extents) for extents in tensors) <= 60_000
        extents = [extent for shape in shapes for extent in shape.values()]
        assert any(extent % 4 for extent in extents if extent > 4)
        assert any(extent % 16 == 0 for extent in extents)
    assert not [shape for shape in task.verify_shapes if shape in task.held_out_shapes]
    (unseen,), (searched,) = task.held_out_timed_shapes, task.search_shapes
    assert 0.1 < task.compulsory_bytes(unseen) / task.compulsory_bytes(searched) < 2


def test_the_reference_is_sound_where_kernels_are_verified(task: Task) -> None:
    assert list(reference_problems(task, (*task.verify_shapes, *task.held_out_shapes))) == []


def test_the_tolerance_lets_the_plain_reference_pass_and_refuses_half_the_digits(task: Task) -> None:
    case = draw_case(task, max(task.verify_shapes, key=task.compulsory_bytes), seed=3)
    halved = {
        name: array.astype(np.float16).astype(np.float64) if array.dtype.kind == "f" else array
        for name, array in case.inputs.items()
    }
    rough = task.expected(halved, case.shape)
    for name, truth in case.expected.items():
        plain = case.plain[name]
        assert compare(plain, truth, plain, task.tolerance).passed
        if truth.dtype.kind == "f" and truth.size > 1:  # a sum of many leaves little of them
            assert not compare(rough[name].astype(plain.dtype), truth, plain, task.tolerance).passed


def checked(folder: Path, kernel: Kernel) -> Evaluation:
    """As `mctskernel check` judges a starting kernel, in this process."""
    return open_for_check(DeviceSpec("model", folder, architecture="H100")).evaluate(kernel)


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [("batched_matmul", "k * size + col", "col * size + k"), ("max_pool", "i < 2", "i < 1")],
)
def test_a_starting_kernel_is_right_and_a_planted_bug_is_found(name: str, right: str, wrong: str) -> None:
    source = load_task(SUITE / name).starting_kernel.source
    assert right in source
    assert checked(SUITE / name, Kernel(source)).ok
    found = checked(SUITE / name, Kernel(source.replace(right, wrong)))
    assert found.outcome in (Outcome.WRONG_RESULT, Outcome.CRASH)


def test_a_description_without_a_task_of_its_own_must_be_of_one_that_is_built_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(SUITE / "axpby", tmp_path / "axpby")
    monkeypatch.setattr("mctskernel.experiments.suites.plain_tasks.SUITE", tmp_path)
    assert list(plain_tasks()) == ["axpby"]
    (tmp_path / "axpby" / "task.toml").unlink()
    with pytest.raises(TaskError, match=r"'axpby' has neither a task\.toml nor"):
        plain_tasks()


def test_a_misspelt_task_gets_a_suggestion() -> None:
    assert [task.name for task in chosen_tasks(["gemv", "softmax"])] == ["gemv", "softmax"]
    with pytest.raises(TaskError, match=r"no task 'gemw'\. Did you mean 'gemv'\?"):
        chosen_tasks(["gemw"])
