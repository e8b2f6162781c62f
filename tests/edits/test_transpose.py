"""Transposing copies through tiles in shared memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import mctskernel.tasks
from mctskernel.core.kernel import Kernel
from mctskernel.core.numerics import Numerics, Propagation
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.profiling.model_device import ModelDevice

RULE = "transpose-tiles"
COPY = "out[col * rows + row] = x[row * cols + col];"
GUARDED = """\
    if (row < rows && col < cols) {
        out[col * rows + row] = x[row * cols + col];
    }
"""
WRITTEN_ALONG_ROWS = """\
    int from = blockIdx.y * BLOCK_Y + threadIdx.y, to = blockIdx.x * BLOCK_X + threadIdx.x;
    if (from >= cols || to >= rows) return;
    int at = to * cols;
    out[from * rows + to] = fmaxf(x[at + from], -1e30f - to);
"""

Results = Callable[[Task, str, str], list[str]]


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task(Path(mctskernel.tasks.__path__[0]) / "transpose")


@pytest.fixture(scope="module")
def device(task: Task) -> ModelDevice:
    return ModelDevice(task)


def test_both_sides_become_whole_rows(task: Task, device: ModelDevice, results: Results) -> None:
    start = task.starting_kernel
    before = device.evaluate(start)
    for text in results(task, start.source, RULE):
        after = device.evaluate(Kernel(text))
        assert after.ok, after.message
        assert all(check.passed for check in device.final_check(Kernel(text)))
        assert after.timings[0].seconds < 0.4 * before.timings[0].seconds
        assert results(task, text, RULE) == []


def test_a_scattered_read_is_turned_as_well(task: Task, results: Results) -> None:
    # What it writes has a lower bound, which swallows NaN.
    device = ModelDevice(
        replace(task, numerics=Numerics(nan=Propagation.UNSPECIFIED, infinity=Propagation.UNSPECIFIED))
    )
    source = task.starting_kernel.source
    head, _, _ = source.partition("    int col =")
    other = head.replace("cols, BLOCK_X", "rows, BLOCK_X").replace("rows, BLOCK_Y", "cols, BLOCK_Y")
    texts = results(task, f"{other}{WRITTEN_ALONG_ROWS}}}\n", RULE)
    assert len(texts) == 2
    for text in texts:
        after = device.evaluate(Kernel(text))
        assert after.ok, after.message
        assert "out[from * rows + to] = fmaxf(tile[threadIdx.x][i], -1e30f - to);" in text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (COPY, "out[row * cols + col] = x[row * cols + col];"),
        (COPY, "out[col * rows + row] += x[row * cols + col];"),
        (COPY, "out[col * rows + row] = x[row * cols + 2 * col];"),
        (COPY, "out[col * rows + row] = x[row * cols + col] + x[(row + 1) * cols + col];"),
        (COPY, "out[col * rows + row] = x[row * cols + col] + threadIdx.x;"),
        (COPY, f"{COPY} out[0] = 1.0f;"),
        (GUARDED, f"    float early = x[0];\n{GUARDED}"),
        ("row < rows", "row <= rows"),
        ('"x", "out"', '"out", "out"'),
        ("blockIdx.y * blockDim.y", "blockIdx.y * blockDim.x"),
        ("const float* x, float* out", "const char* x, float* out"),
    ],
)
def test_other_copies_are_left_alone(task: Task, results: Results, old: str, new: str) -> None:
    source = task.starting_kernel.source.replace("BLOCK_Y 16", "BLOCK_Y 8")
    assert old in source
    assert results(task, source, RULE)
    assert results(task, source.replace(old, new), RULE) == []
