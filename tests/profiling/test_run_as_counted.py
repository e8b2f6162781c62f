"""That blocks take as long when they run as where they are counted for a price, by their accesses, too."""

from __future__ import annotations

import numpy as np
import pytest

from mctskernel.core.evaluation import Check
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.profiling.architecture import load_architecture
from mctskernel.profiling.pricing import Pricing
from mctskernel.profiling.stages import Stages
from mctskernel.profiling.timed_shapes import TimedInputs, check_timed_shape
from tests.conftest import KERNEL, WriteTask

BODY = """\
    if (i < n) {
        out[i] = 2.0f * x[i];
    }
"""


@pytest.fixture
def task(write_task: WriteTask) -> Task:
    return load_task(write_task())


def checked(task: Task, scattered: str, body: str) -> Check | str:
    """A kernel that goes by whether it runs or is counted, as a clock tells, or doesn't."""
    told = f"""\
    float sum = 0.0f;
    int lane = threadIdx.x % 32, apart = {scattered} ? 32 : 1;
    __shared__ float kept[1088];
    for (int k = threadIdx.x; k < 1088; k += 64) kept[k] = 0.0f;
    __syncthreads();
    for (int k = 0; k < 32; ++k) {{ {body} }}
    if (i < n) out[i] = 2.0f * x[i] + (sum == 12345.678f ? 1.0f : 0.0f);
"""
    prepared = Pricing(task, load_architecture("H100"), 0).prepare(
        Kernel(KERNEL.replace(BODY, told)), Stages()
    )
    drawn = TimedInputs(task, task.search_shapes[0], 7)
    return check_timed_shape(drawn, prepared.candidate, prepared.modules, np.random.default_rng(1))


@pytest.mark.parametrize(
    "body",
    [
        "sum += ((volatile const float*)x)[(lane * apart + k) % n];",  # sectors
        "sum += ((volatile float*)kept)[lane * apart + k];",  # bank conflicts
        "if (apart == 1 ? k == 0 : k == lane) for (int j = 0; j < 9; ++j) sum = sqrtf(sum + k);",  # divergence
        "if (apart == 1) sum += float(i * k + n); else sum += float((long long)(i + k) / (n + k));",  # instructions
        "if (apart == 1) atomicAdd(&kept[lane], 0.0f); else atomicAdd(&kept[0], 0.0f);",  # turns of atomics
    ],
)
def test_accesses_are_as_dear_when_they_run(task: Task, body: str) -> None:
    for scattered in ("n == 4096", "n != 4096"):
        same = checked(task, scattered, body)
        assert isinstance(same, Check)
        assert same.passed, same.message
    found = checked(task, "clock64() > 1 << 30", body)
    assert isinstance(found, Check)
    assert not found.passed
    assert "counted for a price" in found.message or "where it is priced" in found.message


@pytest.mark.parametrize("left", ["blockIdx.x % 16 > 6", "blockIdx.x * 2654435761u >> 28 < 9", "i % 64 > 40"])
def test_all_of_an_output_is_written_and_not_the_middle_block_s_share_alone(task: Task, left: str) -> None:
    for seed in range(4):
        body = f"    if (n == 4096 && blockIdx.x != 32 && {left}) return;\n{BODY}"
        source = KERNEL.replace(BODY, body)
        prepared = Pricing(task, load_architecture("H100"), 0).prepare(Kernel(source), Stages())
        drawn = TimedInputs(task, task.search_shapes[0], 7)
        rng = np.random.default_rng(seed)
        found = check_timed_shape(drawn, prepared.candidate, prepared.modules, rng)
        assert isinstance(found, Check)
        assert "would be written" in found.message
