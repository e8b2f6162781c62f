"""Stencils in vectors: right at every shape, however the border is told from the inside, and only stencils."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import mctskernel.tasks
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.profiling.model_device import ModelDevice

RULE = "vector-lines"
BORDER_FIRST = """\
        if (x == 0 || y == 0 || x == width - 1 || y == height - 1) {
            out[i] = grid[i];
        } else {
            float around = grid[i - width] + grid[i + width] + grid[i - 1] + grid[i + 1];
            out[i] = center * grid[i] + side * around;
        }
"""
INSIDE_FIRST = """\
        if (x > 0 && y > 0 && x < width - 1 && y < height - 1)
            out[i] = center * grid[i] + side * (grid[i - width] + grid[i + width] + grid[i - 1] + grid[i + 1]);
        else
            out[i] = grid[i];
"""
READS = "grid[i - width] + grid[i + width] + grid[i - 1] + grid[i + 1]"
Results = Callable[[Task, str, str], list[str]]


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task(Path(mctskernel.tasks.__path__[0]) / "stencil")


@pytest.fixture(scope="module")
def device(task: Task) -> ModelDevice:
    return ModelDevice(task)


@pytest.mark.parametrize("body", [BORDER_FIRST, INSIDE_FIRST])
def test_inner_cells_are_computed_in_vectors(
    task: Task, device: ModelDevice, results: Results, body: str
) -> None:
    source = task.starting_kernel.source
    assert BORDER_FIRST in source
    (text,) = results(task, source.replace(BORDER_FIRST, body), RULE)
    assert text.count("reinterpret_cast<const float4*>(&grid") == 3
    after, before = device.evaluate(Kernel(text)), device.evaluate(task.starting_kernel)
    assert after.ok, f"{after.message}\n{text}"
    assert all(check.passed for check in device.final_check(Kernel(text)))
    assert after.timings[0].seconds < 0.9 * before.timings[0].seconds
    assert results(task, text, RULE) == []


def test_rows_of_a_thread_may_follow(task: Task, device: ModelDevice, results: Results) -> None:
    (text,) = results(task, task.starting_kernel.source, RULE)
    along_y = [after for after in results(task, text, "coarsen-threads") if "ITEMS_Y" in after]
    assert along_y
    evaluation = device.evaluate(Kernel(along_y[0]))
    assert evaluation.ok, evaluation.message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (READS, "grid[i]"),  # nothing beside the cell
        ("grid[i - 1]", "grid[2 * i]"),
        ("grid[i - 1]", "grid[width - x]"),
        ("grid[i - 1]", "(x > 3 ? grid[i - 1] : 0.0f)"),
        ("center * grid[i]", "center * out[i]"),
        ("out[i] = center", "out[i + 1] = center"),
        ("out[i] = center", "grid[i] = 0.0f; out[i] = center"),
        ("x == 0 ||", "x == 0 || grid[i] > 0.0f ||"),
        ("int i = y * width + x;", "int i = y * width + x; i += 1;"),
        ("int i = y * width + x;", "size_t i = (size_t)y * width + x;"),
        ('"grid", "out"', '"out", "out"'),
        ("const float* grid", "const double* grid"),
    ],
)
def test_other_kernels_are_left_alone(task: Task, results: Results, old: str, new: str) -> None:
    source = task.starting_kernel.source
    assert old in source
    assert results(task, source.replace(old, new), RULE) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("&& !((x + 3) == 0 || y == 0 || (x + 3) == width - 1 || y == height - 1)", ""),
        ("return reinterpret_cast<size_t>(address) % 16 == 0;", "return true;"),
        ("grid_line3[8] = grid[y * width + x + 4];", ""),
        ("lane < width - x;", "true;"),
    ],
)
def test_a_planted_bug_is_found_out(
    task: Task, device: ModelDevice, results: Results, old: str, new: str
) -> None:
    (text,) = results(task, task.starting_kernel.source, RULE)
    assert old in text
    assert not device.evaluate(Kernel(text.replace(old, new))).ok
