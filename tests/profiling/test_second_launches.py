"""What a second launch over the output can hide at the shape that is timed."""

from __future__ import annotations

import numpy as np
import pytest

from mctskernel.core.evaluation import Check
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.profiling import timed_shapes
from mctskernel.profiling.architecture import load_architecture
from mctskernel.profiling.pricing import Pricing
from mctskernel.profiling.stages import Stages
from mctskernel.profiling.timed_shapes import TimedInputs, check_timed_shape
from tests.conftest import KERNEL, WriteTask

SECOND = """
[[launch]]
kernel = "mend"
grid = ["ceil_div(n, 64)"]
block = [64]
args = ["x", "out", "n"]
*/
"""
MEND = """
extern "C" __global__ void mend(const float* x, float* out, int n) {
    int i = blockIdx.x * 64 + threadIdx.x;
    if (CONDITION) out[i] = 2.0f * x[i];
}
"""


@pytest.fixture
def task(write_task: WriteTask) -> Task:
    return load_task(write_task())


def checked(task: Task, condition: str, factor: str, monkeypatch: pytest.MonkeyPatch) -> Check | str:
    """A kernel whose second launch is too long to be followed."""
    monkeypatch.setattr(timed_shapes, "WHOLE", 0)
    monkeypatch.setattr(timed_shapes, "AWAITED", 0)
    source = KERNEL.replace("*/\n", SECOND, 1).replace("2.0f * x[i]", f"{factor} * x[i]")
    source += MEND.replace("CONDITION", condition)
    prepared = Pricing(task, load_architecture("H100"), 0).prepare(Kernel(source), Stages())
    drawn = TimedInputs(task, task.search_shapes[0], 7)
    return check_timed_shape(drawn, prepared.candidate, prepared.modules, np.random.default_rng(1))


@pytest.mark.parametrize("condition", ["n < 0", "i == 777", "i == n"])
def test_a_launch_that_leaves_the_output_alone_hides_nothing(
    condition: str, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = checked(task, condition, "2.0f", monkeypatch)
    assert isinstance(right, Check)
    assert right.passed, right.message
    wrong = checked(task, condition, "(n == 4096 ? 1.0f : 2.0f)", monkeypatch)
    assert isinstance(wrong, Check)
    assert "'out' is wrong" in wrong.message


def test_a_launch_may_mend_what_is_seldom_wrong(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    seldom = "i % 64 == 13 && i / 64 % 7 == 3"
    found = checked(task, seldom, f"({seldom} ? 1.0f : 2.0f)", monkeypatch)
    assert isinstance(found, str) or found.passed


HANDED_ON = """\
/*
[[launch]]
kernel = "part"
grid = ["ceil_div(n, 64)", 2]
block = [64]
args = ["x", "kept", "n"]

[[launch]]
kernel = "whole"
grid = ["ceil_div(n, 128)"]
block = [128]
args = ["kept", "out", "n"]

[[scratch]]
name = "kept"
dtype = "float32"
shape = [2, "n"]
*/
extern "C" __global__ void part(const float* x, float* kept, int n) {
    int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) kept[blockIdx.y * n + i] = FACTOR * x[i];
}

extern "C" __global__ void whole(const float* kept, float* out, int n) {
    int i = PLACE;
    if (i >= 0 && i < n) out[i] = kept[i] + kept[n + i];
}
"""
ADDED_UP = """\
/*
[[launch]]
kernel = "clear"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["out", "n"]

[[launch]]
kernel = "add"
grid = ["ceil_div(n, 64)", 1, 4]
block = [64]
args = ["x", "out", "n"]
*/
extern "C" __global__ void clear(float* out, int n) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = 0.0f;
}

extern "C" __global__ void add(const float* x, float* out, int n) {
    int i = PLACE;
    if (i >= 0 && i < n) atomicAdd(out + i, 0.5f * FACTOR * x[i]);
}
"""


def looked_at(task: Task, source: str, factor: str, place: str, seed: int = 1) -> Check | str:
    """A plan none of whose launches is followed whole."""
    source = source.replace("FACTOR", factor).replace("PLACE", place)
    prepared = Pricing(task, load_architecture("H100"), 0).prepare(Kernel(source), Stages())
    drawn = TimedInputs(task, task.search_shapes[0], 7)
    return check_timed_shape(drawn, prepared.candidate, prepared.modules, np.random.default_rng(seed))


@pytest.mark.parametrize("source", [HANDED_ON, ADDED_UP])
@pytest.mark.parametrize(
    "place", ["blockIdx.x * blockDim.x + threadIdx.x", "n - 1 - int(blockIdx.x * blockDim.x + threadIdx.x)"]
)
def test_the_blocks_that_have_a_hand_in_a_result_are_enough(
    source: str, place: str, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timed_shapes, "WHOLE", 0)
    monkeypatch.setattr(timed_shapes, "AWAITED", 0)
    right = looked_at(task, source, "1.0f", place)
    assert isinstance(right, Check)
    assert right.passed, right.message
    wrong = looked_at(task, source, "(n == 4096 ? 0.5f : 1.0f)", place)
    assert isinstance(wrong, Check)
    assert "'out' is wrong" in wrong.message


@pytest.mark.parametrize("source", [HANDED_ON, ADDED_UP])
def test_nothing_is_said_where_blocks_follow_no_pattern(
    source: str, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timed_shapes, "WHOLE", 0)
    monkeypatch.setattr(timed_shapes, "AWAITED", 0)
    shuffled = "int(blockIdx.x * 37 % gridDim.x * blockDim.x + threadIdx.x)"
    for seed in range(4):
        found = looked_at(task, source, "1.0f", shuffled, seed)
        assert isinstance(found, str) or found.passed, found.message
