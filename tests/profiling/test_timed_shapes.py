"""What is noticed at the shape that is timed, when all that is verified in full is smaller."""

from __future__ import annotations

import numpy as np
import pytest

from mctskernel.core.evaluation import Check, Guard, Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.profiling.architecture import load_architecture
from mctskernel.profiling.model_device import ModelDevice
from mctskernel.profiling.pricing import Pricing
from mctskernel.profiling.stages import Stages
from mctskernel.profiling.timed_shapes import TimedInputs, check_timed_shape
from tests.conftest import KERNEL, WriteTask

BODY = """\
    if (i < n) {
        out[i] = 2.0f * x[i];
    }
"""
TWO_LAUNCHES = """\
/*
[[launch]]
kernel = "half"
grid = ["ceil_div(n, 64)"]
block = [64]
args = ["x", "kept", "n"]

[[launch]]
kernel = "turned"
grid = ["ceil_div(n, 64)"]
block = [64]
args = ["kept", "out", "n"]

[[scratch]]
name = "kept"
dtype = "float32"
shape = ["n"]
*/
extern "C" __global__ void half(const float* x, float* kept, int n) {
    int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) kept[n - 1 - i] = x[i];
}

extern "C" __global__ void turned(const float* kept, float* out, int n) {
    int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = 2.0f * kept[n - 1 - i];
}
"""


@pytest.fixture
def task(write_task: WriteTask) -> Task:
    return load_task(write_task())


def checked(task: Task, source: str, seed: int = 0) -> Check | str:
    prepared = Pricing(task, load_architecture("H100"), 0).prepare(Kernel(source), Stages())
    drawn = TimedInputs(task, task.search_shapes[0], 7)
    return check_timed_shape(drawn, prepared.candidate, prepared.modules, np.random.default_rng(seed))


def test_a_right_kernel_passes(task: Task) -> None:
    found = checked(task, KERNEL)
    assert isinstance(found, Check)
    assert found.passed, found.message
    assert found.shape == "n=4096"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("    if (i < n) out[i] = (n == 4096 ? 1.0f : 2.0f) * x[i];\n", "'out' is wrong"),
        ("    if (gridDim.x == 64) return;\n" + BODY, "would be written"),
        ("    if (gridDim.x == 64 && i % 64 > 20) return;\n" + BODY, "would be written"),
        ("    if (n == 4096) x += 1 << 20;\n" + BODY, "past the end of x"),
        (
            "    __shared__ float t[64];\n    if (n == 4096) x = t - blockIdx.x * 64;\n" + BODY,
            "nothing has written",
        ),
    ],
)
def test_a_kernel_that_cheats_where_it_is_timed_fails(task: Task, body: str, sentence: str) -> None:
    found = checked(task, KERNEL.replace(BODY, body))
    assert isinstance(found, Check)
    assert not found.passed
    assert sentence in found.message


def test_blocks_that_cheat_where_no_price_is_made_are_found_at_random(task: Task) -> None:
    wrong = KERNEL.replace(
        BODY, "    if (gridDim.x == 64 && blockIdx.x > 2 && blockIdx.x < 31) x = out;\n" + BODY
    )
    found = [checked(task, wrong, seed) for seed in range(12)]
    assert sum(isinstance(each, Check) and not each.passed for each in found) >= 6


def test_nothing_is_said_where_blocks_hand_results_to_each_other(task: Task) -> None:
    found = checked(task, TWO_LAUNCHES)
    assert isinstance(found, str)
    assert "'turned'" in found


def test_the_last_gate_looks_at_the_shape_that_the_search_timed(task: Task) -> None:
    cheat = Kernel(KERNEL.replace("2.0f * x[i]", "(n == 4096 ? 1.0f : 2.0f) * x[i]"))
    # Without the guard it passes all that is verified, and what was held out.
    assert ModelDevice(task).evaluate(cheat).ok
    assert ModelDevice(task.held_out).evaluate(cheat).ok
    refused = ModelDevice(task.held_out, searched=task).evaluate(cheat)
    assert (refused.outcome, refused.guard) == (Outcome.WRONG_RESULT, Guard.TIMED_OUTPUTS)
    assert ModelDevice(task.held_out, searched=task).evaluate(Kernel(KERNEL)).ok
