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
