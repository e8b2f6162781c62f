"""Kernels that compute something else at the shape that is timed than at those that are verified."""

from dataclasses import replace

import pytest

from mctskernel.core.evaluation import Check, Guard, Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.profiling import emulated_verification, sampled_blocks
from mctskernel.profiling.architecture import load_architecture
from mctskernel.profiling.emulator import Limits
from mctskernel.profiling.model_device import ModelDevice
from mctskernel.profiling.pricing import Pricing
from mctskernel.profiling.sampled_blocks import check_blocks
from mctskernel.profiling.stages import Stages
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
    monkeypatch.setattr(sampled_blocks, "WHOLE", request.param)
    return not request.param


def checked(task: Task, source: str) -> Check | None:
    prepared = Pricing(task, load_architecture("H100"), 0).prepare(Kernel(source), Stages())
    shape = task.search_shapes[0]
    return check_blocks(task, shape, 7, prepared.candidate, prepared.modules, timed=True).check


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


@pytest.mark.parametrize(("test", "values"), [("isnan", "NaN"), ("isinf", "infinite")])
def test_special_values_are_tried_at_the_timed_shape_where_rows_are_independent(
    task: Task, test: str, values: str
) -> None:
    task = replace(task, independent="n")
    right = ModelDevice(task, searched=task).evaluate(Kernel(KERNEL))
    assert right.ok, right.message
    assert [check.shape for check in right.checks].count("n=4096") == 2
    cheat = KERNEL.replace("2.0f * x[i]", f"(n == 4096 && {test}(x[i]) ? 0.0f : 2.0f * x[i])")
    found = ModelDevice(task, searched=task).evaluate(Kernel(cheat))
    assert found.outcome is Outcome.WRONG_RESULT
    assert values in found.message


@pytest.mark.parametrize(
    ("body", "outcome", "sentence"),
    [
        (BODY, Outcome.OK, ""),
        ("    if (i < n) out[i] = 2.5f * x[i];\n", Outcome.WRONG_RESULT, "'out' is wrong"),
        (
            "    if (i < n) out[i] = (blockIdx.x == gridDim.x - 1 ? 1 : 2) * x[i];\n",
            Outcome.WRONG_RESULT,
            "wrong",
        ),
        ("    out[i] = 2.0f * x[min(i, n - 1)];\n", Outcome.CRASH, "past the end of out"),
        ("    while (n > 100) __nanosleep(1);\n" + BODY, Outcome.TIMEOUT, "still running"),
    ],
    ids=["right", "wrong", "wrong at the end", "past the end", "endless"],
)
@pytest.mark.parametrize("why", ["many bytes", "much work"])
def test_large_verify_shapes_are_checked_on_sampled_blocks(  # noqa: PLR0917 - pytest passes them by name
    task: Task, monkeypatch: pytest.MonkeyPatch, why: str, body: str, outcome: Outcome, sentence: str
) -> None:
    monkeypatch.setattr(sampled_blocks, "WHOLE", 0)
    monkeypatch.setattr(sampled_blocks, "LIMITS", Limits(block_executions=2000))
    monkeypatch.setattr(sampled_blocks, "GROUPS", 1)
    if why == "many bytes":
        monkeypatch.setattr(emulated_verification, "LARGE_BYTES", 256)
    else:
        monkeypatch.setattr(emulated_verification, "LIMITS", Limits(lane_instructions=1000))
    found = ModelDevice(replace(task, verify_shapes=({"n": 2000},))).evaluate(
        Kernel(KERNEL.replace(BODY, body))
    )
    assert found.outcome is outcome, found.message
    assert sentence in found.message
    if outcome is Outcome.OK:
        assert any("at n=2000: verified on 8 of 32 blocks" in flag for flag in found.flags), found.flags
