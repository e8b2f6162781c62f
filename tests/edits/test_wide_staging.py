"""Float4 copies of matmul tiles: what they may not cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

import mctskernel.tasks
from mctskernel.core.evaluation import Resources
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.profiling.model_device import ModelDevice

RULE = "float4-tiles"

Results = Callable[..., list[str]]


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task(Path(mctskernel.tasks.__path__[0]) / "matmul")


@pytest.fixture(scope="module")
def blocked(task: Task, results: Results) -> str:
    """The matmul with 8 x 8 outputs a thread."""
    return results(task, task.starting_kernel.source, "matmul-register-blocking")[1]


def test_one_branch_chooses_between_two_loops_over_k(task: Task, blocked: str, results: Results) -> None:
    (text,) = results(task, blocked, RULE)
    assert text.index("if (wide_a && wide_b) {") < text.index("for (int k0")
    assert text.count("for (int k0") == 2
    assert results(task, text, RULE) == []


@pytest.mark.parametrize(("registers", "bounds"), [(127, "(THREADS, 2)"), (40, "(THREADS, 4)"), (200, None)])
def test_registers_stay_within_what_keeps_as_many_blocks_resident(
    task: Task, blocked: str, results: Results, registers: int, bounds: str | None
) -> None:
    resources = (Resources("matmul", registers=registers, shared_bytes=0),)
    (text,) = results(task, blocked, RULE, resources=resources)
    assert (f"__launch_bounds__{bounds} matmul(" in text) is (bounds is not None)
    assert ("__launch_bounds__" in text) is (bounds is not None)


@pytest.mark.parametrize("vector", [1, 2, 4, 8])
def test_any_vector_of_a_threads_outputs_is_correct(
    task: Task, blocked: str, results: Results, vector: int
) -> None:
    (text,) = results(task, blocked.replace("VEC 4", f"VEC {vector}"), RULE)
    # Whether it is right is not a question of the shape that it is timed at.
    small = dataclasses.replace(task, search_shapes=task.verify_shapes[-1:])
    evaluation = ModelDevice(small).evaluate(Kernel(text))
    assert evaluation.ok, evaluation.message
