"""Reductions whose blocks stride over the elements: launches, scratch and kernels change together or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import mctskernel.tasks
from mctskernel.core.kernel import Kernel
from mctskernel.core.launch_plan import plan_of
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.profiling.model_device import ModelDevice

RULE = "strided-block-reduction"
FEWER = "min(BLOCKS, ceil_div(n, BLOCK))"

Results = Callable[[Task, str, str], list[str]]


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task(Path(mctskernel.tasks.__path__[0]) / "sum")


def test_the_whole_plan_follows_the_new_grid(task: Task, results: Results) -> None:
    text = results(task, task.starting_kernel.source, RULE)[0]
    plan = plan_of(Kernel(text))
    assert plan.launches[0].grid == (FEWER,)
    assert plan.launches[1].args == ("partial", "out", FEWER)
    assert plan.scratch[0].shape == (FEWER,)
    assert results(task, text, RULE) == []


def test_it_stays_correct_and_its_loop_can_be_widened(task: Task, results: Results) -> None:
    device = ModelDevice(task)
    text = results(task, task.starting_kernel.source, RULE)[0]
    before, after = device.evaluate(task.starting_kernel), device.evaluate(Kernel(text))
    assert after.ok, after.message
    for rule in ("warp-shuffle-reduction", "float4-access"):
        text = results(task, text, rule)[0]
    wide = device.evaluate(Kernel(text))
    assert wide.ok, wide.message
    assert all(check.passed for check in device.final_check(Kernel(text)))
    assert wide.timings[0].seconds < after.timings[0].seconds < before.timings[0].seconds


FIRST = "tile[tid] = i < n ? x[i] : 0.0f;"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x[i] : 0.0f", "x[i] : 1.0f"),
        ("i < n ? x[i]", "i < n - 1 ? x[i]"),
        (FIRST, f"{FIRST} if (i == 0) partial[0] = 0.0f;"),
        (FIRST, "tile[tid] = i < n ? x[i] + blockIdx.x : 0.0f;"),
        ("partial[blockIdx.x] = tile[0];", "partial[blockIdx.x] = sqrtf(tile[0]);"),
        ("partial[blockIdx.x] = tile[0];", "partial[blockIdx.x] += tile[0];"),
        ("partial[blockIdx.x] = tile[0];", "partial[blockIdx.x + 1] = tile[0];"),
        ("sum += partial[i];", "sum += partial[i] * partial[i];"),
        ("sum += partial[i];", "sum = fmaxf(sum, partial[i]);"),
        ("sum += partial[i];", "sum += i;"),
        ("out[0] = tile[0];", "out[0] = tile[0] / count;"),
        ("out[0] = tile[0];", "out[0] = tile[0] + partial[0];"),
        ("int i = tid; i < count", "int i = tid + 1; i < count"),
        ('"partial", "out", "ceil_div(n, BLOCK)"', '"partial", "out", "n"'),
        ('dtype = "float32"', 'dtype = "float32"\nzero = true'),
    ],
)
def test_a_reduction_that_is_told_apart_is_left_alone(
    task: Task, results: Results, old: str, new: str
) -> None:
    source = task.starting_kernel.source
    assert old in source
    assert results(task, source.replace(old, new), RULE) == []
