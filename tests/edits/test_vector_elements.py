"""Four elements a thread in elementwise kernels: correct at every remainder, left alone where lanes would meet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import mctskernel.tasks
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.profiling.model_device import ModelDevice

RULE = "float4-elements"
FLAT = """\
/*
[[launch]]
kernel = "halve"
grid = ["ceil_div(rows * cols, BLOCK)"]
block = ["BLOCK"]
args = ["x", "out", "rows * cols"]
*/
#define BLOCK 256

__global__ void halve(const float* x, float* out, int n) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) {
        float half = 0.5f * x[i];
        out[i] = half;
    }
}
"""
ROWS = """\
/*
[[launch]]
kernel = "halve"
grid = ["ceil_div(cols, BLOCK)", "rows"]
block = ["BLOCK"]
args = ["x", "out", "rows", "cols"]
*/
#define BLOCK 64

__global__ void halve(const float* x, float* out, int rows, int cols) {
    int col = blockIdx.x * BLOCK + threadIdx.x;
    if (col >= cols) return;
    int at = blockIdx.y * cols + col;
    if (col % 2 == 0) {
        out[at] = 0.25f * x[at];
    }
    out[at] = 0.5f * x[blockIdx.y * cols + col];
}
"""
REFERENCE = "def reference(x):\n    return x * x.dtype.type(0.5)\n"

Results = Callable[..., list[str]]


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """Half of a matrix: the built-in transpose with another reference and another output."""
    transpose = Path(mctskernel.tasks.__path__[0]) / "transpose"
    folder = tmp_path_factory.mktemp("tasks") / "halve"
    folder.mkdir()
    text = (transpose / "task.toml").read_text()
    assert text.count('["cols", "rows"]') == 1
    text = text.replace('["cols", "rows"]', '["rows", "cols"]').replace('"transpose"', '"halve"')
    text = text.replace('denormals = "preserve"', 'denormals = "unspecified"')
    (folder / "task.toml").write_text(text)
    (folder / "reference.py").write_text(REFERENCE)
    (folder / "kernel.cu").write_text(FLAT)
    return load_task(folder)


@pytest.mark.parametrize("source", [FLAT, ROWS], ids=["flat", "rows"])
def test_elements_move_as_float4_at_every_shape(task: Task, results: Results, source: str) -> None:
    device = ModelDevice(task)
    before = device.evaluate(Kernel(source))
    assert before.ok, before.message
    (text,) = results(task, source, RULE)
    assert "BLOCK * 4)" in text
    after = device.evaluate(Kernel(text))
    assert after.ok, after.message
    assert all(check.passed for check in device.final_check(Kernel(text)))
    assert after.timings[0].seconds < before.timings[0].seconds
    assert results(task, text, RULE) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("out[i] = half;", "if (half > 0.0f) out[i] = half;"),
        ("out[i] = half;", "out[i] = half; out[0] = 1.0f;"),
        ("out[i] = half;", "out[i + 1] = half; out[i] = half;"),
        ("out[i] = half;", "out[2 * i] = half;"),
        ("0.5f * x[i];", "i > 0 ? x[i - 1] : x[i];"),
        ("0.5f * x[i];", "i + 1 < n && x[i + 1] > 0.0f ? 1.0f : x[i];"),
        ("0.5f * x[i];", "0.5f * x[3 * i];"),
        ("    if (i < n) {", "    int next = i + 1;\n    if (i < n) {"),
        ("const float* x, float* out", "const float* x, double* out"),
        ('"x", "out"', '"out", "out"'),
        ("i < n", "i < n - 1"),
    ],
)
def test_other_bodies_are_left_alone(task: Task, results: Results, old: str, new: str) -> None:
    assert old in FLAT
    assert results(task, FLAT.replace(old, new), RULE) == []
