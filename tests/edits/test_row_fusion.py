"""Launches over the same rows in one kernel: what is computed stays the same, and what isn't certain stays apart."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import mctskernel.tasks
from mctskernel.core.kernel import Kernel
from mctskernel.core.launch_plan import plan_of
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.profiling.model_device import ModelDevice

RULE = "fuse-rows"
Results = Callable[[Task, str, str], list[str]]

SOFTMAX = """\
/*
[[launch]]
kernel = "largest_of_rows"
grid = ["ceil_div(rows, BLOCK)"]
block = ["BLOCK"]
args = ["x", "largest", "rows", "cols"]

[[launch]]
kernel = "sum_of_rows"
grid = ["ceil_div(rows, BLOCK)"]
block = ["BLOCK"]
args = ["x", "largest", "total", "rows", "cols"]

[[launch]]
kernel = "share_of_elements"
grid = ["ceil_div(rows * cols, BLOCK)"]
block = ["BLOCK"]
args = ["largest", "total", "x", "out", "rows", "cols"]

[[scratch]]
name = "largest"
dtype = "float32"
shape = ["rows"]

[[scratch]]
name = "total"
dtype = "float32"
shape = ["rows"]
*/
#define BLOCK 128

// The largest of each row.
extern "C" __global__ void largest_of_rows(const float* x, float* largest, int rows, int cols) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows) {
        float most = x[row * cols];
        for (int k = 0; k < cols; ++k) {
            float value = x[row * cols + k];
            most = value > most || value != value ? value : most;
        }
        largest[row] = most;
    }
}

extern "C" __global__ void sum_of_rows(const float* in, const float* most, float* total, int n, int cols) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = 0.0f;
    for (int k = 0; k < cols; ++k) {
        sum += expf(in[i * cols + k] - most[i]);
    }
    total[i] = 1.0f / sum;
}

extern "C" __global__ void share_of_elements(
    const float* largest, const float* total, const float* x, float* out, int rows, int cols) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows * cols) {
        int row = i / cols;
        float most = x[i] - largest[row];
        out[i] = expf(most) * total[i / cols];
    }
}
"""


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task(Path(mctskernel.tasks.__path__[0]) / "softmax")


@pytest.fixture(scope="module")
def device(task: Task) -> ModelDevice:
    return ModelDevice(task)


def test_three_launches_become_one_that_is_right(task: Task, device: ModelDevice, results: Results) -> None:
    assert device.evaluate(Kernel(SOFTMAX)).ok
    (fused,) = results(task, SOFTMAX, RULE)
    plan = plan_of(Kernel(fused))
    assert ([launch.args for launch in plan.launches], plan.scratch) == ([("x", "rows", "cols", "out")], ())
    assert fused.count("__global__") == 1
    assert "The largest of each row." not in fused
    assert device.evaluate(Kernel(fused)).ok
    assert not [check for check in device.final_check(Kernel(fused)) if not check.passed]


def test_threads_share_the_rows_of_what_was_fused(task: Task, device: ModelDevice, results: Results) -> None:
    naive = device.evaluate(Kernel(SOFTMAX)).timings[0].seconds
    texts = results(task, SOFTMAX, "fused-rows-on-chip")
    evaluations = [device.evaluate(Kernel(text)) for text in texts]
    assert all(each.ok for each in evaluations), [each.message for each in evaluations]
    assert min(each.timings[0].seconds for each in evaluations) < naive / 8


def test_what_others_read_is_still_stored(task: Task, device: ModelDevice, results: Results) -> None:
    """A fourth launch, which turns what it is given around, needs the sums that the fused kernel has in a register."""
    apart = SOFTMAX.replace(
        "[[scratch]]",
        '[[launch]]\nkernel = "again"\ngrid = ["rows"]\nblock = [1]\nargs = ["total", "largest"]\n\n[[scratch]]',
        1,
    )
    apart += (
        'extern "C" __global__ void again(const float* total, float* largest) {\n'
        "    largest[blockIdx.x] = total[gridDim.x - 1 - blockIdx.x];\n}\n"
    )
    (fused,) = results(task, apart, RULE)
    assert [launch.kernel for launch in plan_of(Kernel(fused)).launches] == ["fused_rows", "again"]
    assert {scratch.name for scratch in plan_of(Kernel(fused)).scratch} == {"largest", "total"}
    assert re.search(r"total\[row\] = \w+;", fused)
    assert device.evaluate(Kernel(fused)).ok


def test_names_that_several_kernels_use_are_kept_apart(
    task: Task, device: ModelDevice, results: Results
) -> None:
    """Sum and maximum have the same name, which is also that of a parameter of the third kernel."""
    same = SOFTMAX.replace("float sum = 0.0f", "float most2 = 0.0f").replace("sum +=", "most2 +=")
    same = same.replace("1.0f / sum", "1.0f / most2").replace(
        "const float* total, const", "const float* k, const"
    )
    same = same.replace("* total[i / cols]", "* k[i / cols]").replace("float value =", "float out =")
    same = same.replace(
        "value > most || value != value ? value : most", "out > most || out != out ? out : most"
    )
    assert device.evaluate(Kernel(same)).ok
    (fused,) = results(task, same, RULE)
    evaluation = device.evaluate(Kernel(fused))
    assert evaluation.ok, f"{evaluation.message}\n{fused}"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("- most[i]", "- most[n - 1 - i]"),
        ("- largest[row]", "- largest[rows - 1 - row]"),
        ("i < rows * cols", "i < rows * cols - 1"),
        ("i / cols", "i / (cols + 1)"),
        ("if (i >= n) return;", "if (i >= n - 1) return;"),
        ("largest[row] = most;", "if (most > 0.0f) largest[row] = most;"),
        ("largest[row] = most;", "largest[row] = most; largest[row] += 1.0f;"),
        ("float sum = 0.0f;", "float sum = 0.0f;\n    if (sum > 1.0f) return;"),
        ("float sum = 0.0f;", "__shared__ float sum;"),
        ("float sum = 0.0f;", "float sum = *(in + 1);"),
        ("float sum = 0.0f;", "float sum = blockIdx.x;"),
        ("    int i = blockIdx.x", "    long long i = blockIdx.x"),
        ("out[i] = expf", "if (most < 9.0f) out[i] = expf"),
        ("const float* x, float* out", "const int* x, float* out"),
    ],
)
def test_what_may_be_something_else_stays_apart(task: Task, results: Results, old: str, new: str) -> None:
    assert old in SOFTMAX
    changed = SOFTMAX.replace(old, new)
    fused = results(task, changed, RULE)
    assert all(len(plan_of(Kernel(text)).launches) > 1 for text in fused)


def test_what_an_earlier_launch_reads_is_not_written_too_soon(task: Task, results: Results) -> None:
    """In place, a row's result would replace what the row's own sum has read, and a neighbour's hasn't."""
    backwards = SOFTMAX.replace("in[i * cols + k] -", "in[(n - 1 - i) * cols + k] -")
    backwards = backwards.replace('"total", "x", "out", "rows"', '"total", "out", "x", "rows"')
    assert [len(plan_of(Kernel(text)).launches) for text in results(task, backwards, RULE)] == [2]


def test_a_value_that_changes_after_it_was_stored_is_kept_as_it_was(
    task: Task, device: ModelDevice, results: Results
) -> None:
    changed = SOFTMAX.replace("largest[row] = most;", "largest[row] = most;\n        most = 0.0f;")
    (fused,) = results(task, changed, RULE)
    assert "float row_largest = most;" in fused
    assert device.evaluate(Kernel(fused)).ok


def test_arrays_of_a_thread_go_with_it(task: Task, device: ModelDevice, results: Results) -> None:
    own = SOFTMAX.replace(
        "float most = x[row * cols];",
        "float first[1];\n        first[0] = x[row * cols];\n        float most = first[0];",
    )
    (fused,) = results(task, own, RULE)
    assert device.evaluate(Kernel(fused)).ok


def test_a_maximum_that_keeps_nan_keeps_it_among_threads(
    task: Task, device: ModelDevice, results: Results
) -> None:
    texts = results(task, SOFTMAX, "parallel-rows")
    (by_block, by_warp) = [text for text in texts if "nan_max(" in text]
    assert "__shfl_xor_sync" in by_warp
    for text in (by_block, by_warp):
        assert device.evaluate(Kernel(text)).ok
