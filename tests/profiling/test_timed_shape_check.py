"""Kernels that compute something else at the shape that is timed than at those that are verified."""

from __future__ import annotations

import pytest

from mctskernel.core.evaluation import Check, Guard, Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.profiling import timed_shape_check
from mctskernel.profiling.architecture import load_architecture
from mctskernel.profiling.model_device import ModelDevice
from mctskernel.profiling.pricing import Pricing
from mctskernel.profiling.stages import Stages
from mctskernel.profiling.timed_shape_check import check_timed_shape
from tests.conftest import KERNEL, WriteTask

BODY = """\
    if (i < n) {
        out[i] = 2.0f * x[i];
    }
"""


@pytest.fixture
def task(write_task: WriteTask) -> Task:
    return load_task(write_task())


@pytest.fixture(params=[60_000_000, 0], ids=["in full", "some blocks"])
def sampled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(timed_shape_check, "WHOLE", request.param)
    return not request.param


def checked(task: Task, source: str) -> Check | str:
    prepared = Pricing(task, load_architecture("H100"), 0).prepare(Kernel(source), Stages())
    return check_timed_shape(task, task.search_shapes[0], 7, prepared.candidate, prepared.modules)


@pytest.mark.usefixtures("sampled")
def test_a_correct_kernel_passes(task: Task) -> None:
    found = checked(task, KERNEL)
    assert isinstance(found, Check)
    assert found.passed, found.message
    assert found.shape == "n=4096"


@pytest.mark.usefixtures("sampled")
@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("    if (i < n) out[i] = (n == 4096 ? 1.0f : 2.0f) * x[i];\n", "'out' is wrong"),
        ("    if (gridDim.x == 64 && i % 64 > 20) return;\n" + BODY, "write too little"),
        ("    if (gridDim.x == 64 && blockIdx.x % 2) return;\n" + BODY, "write too little"),
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


def test_only_the_final_validation_checks_the_timed_shape(task: Task) -> None:
    cheat = Kernel(KERNEL.replace("2.0f * x[i]", "(n == 4096 ? 1.0f : 2.0f) * x[i]"))
    assert ModelDevice(task).evaluate(cheat).ok
    refused = ModelDevice(task, searched=task).evaluate(cheat)
    assert refused.outcome is Outcome.WRONG_RESULT
    assert refused.guard is Guard.TIMED_OUTPUTS
