"""The `gpu` device on a GPU: right kernels are timed, wrong ones get their outcome, broken ones cost a worker."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mctskernel.core.device import DeviceSpec
from mctskernel.core.evaluation import Outcome, Source
from mctskernel.core.kernel import Kernel
from mctskernel.core.task_file import load_task
from mctskernel.executors.local import LocalExecutor
from mctskernel.profiling.gpu_device import GpuDevice
from mctskernel.profiling.workers import Limits
from mctskernel.tasks import builtin_tasks
from tests.conftest import KERNEL, WriteTask

pytestmark = pytest.mark.gpu

LOAD = "2.0f * x[i]"


@pytest.mark.parametrize("folder", builtin_tasks().values(), ids=lambda folder: folder.name)
def test_starting_kernels_are_right_and_timed(folder: Path) -> None:
    task = load_task(folder)
    device = GpuDevice(task)
    evaluation = device.evaluate(task.starting_kernel)
    assert evaluation.ok, evaluation.message
    assert not evaluation.quarantine
    assert evaluation.source is Source.MEASURED
    (timing,) = evaluation.timings
    assert timing.baseline_seconds == pytest.approx(timing.seconds, rel=0.05)
    assert all(check.passed for check in device.final_check(task.starting_kernel))


@pytest.mark.parametrize(
    ("source", "outcome", "says"),
    [
        (KERNEL.replace(LOAD, "3.0f * x[i]"), Outcome.WRONG_RESULT, "'out' is wrong"),
        (KERNEL.replace(f"out[i] = {LOAD};", ""), Outcome.WRONG_RESULT, "never written"),
        (KERNEL.replace(LOAD, "0.0f / 0.0f"), Outcome.WRONG_RESULT, "nan"),
        (
            KERNEL.replace(f"out[i] = {LOAD};", f"out[i] = {LOAD}; ((float*)x)[i] = 0.0f;"),
            Outcome.WRONG_RESULT,
            "changed in place",
        ),
        (KERNEL.replace(LOAD, "oops"), Outcome.BUILD_ERROR, "oops"),
        (KERNEL.replace('args = ["x", "out", "n"]', 'args = ["x", "n"]'), Outcome.LAUNCH_ERROR, "parameters"),
        (
            KERNEL.replace('args = ["x"', 'shared = 300000\nargs = ["x"'),
            Outcome.LAUNCH_ERROR,
            "shared memory",
        ),
    ],
)
def test_wrong_kernels_get_their_outcome(
    write_task: WriteTask, source: str, outcome: Outcome, says: str
) -> None:
    evaluation = GpuDevice(load_task(write_task())).evaluate(Kernel(source))
    assert evaluation.outcome is outcome, evaluation.message
    assert says in evaluation.message.lower()


def test_an_illegal_address_loses_the_device_and_carries_its_evaluation(write_task: WriteTask) -> None:
    task = load_task(write_task())
    wild = Kernel(KERNEL.replace("x[i]", "x[i + (1ll << 40)]"))
    with LocalExecutor(DeviceSpec("gpu", task.folder), workers=1) as executor:
        executor.submit(0, wild)
        ((_, evaluation),) = executor.wait(60)
        assert evaluation.outcome is Outcome.CRASH
        assert "illegal" in evaluation.message.lower()
        executor.submit(1, task.starting_kernel)
        ((_, evaluation),) = executor.wait(60)
        assert evaluation.ok, evaluation.message


def test_a_hang_costs_one_evaluation(write_task: WriteTask) -> None:
    task = load_task(write_task())
    hang = Kernel(
        KERNEL.replace("if (i < n) {", "while (*(volatile const float*)x != 12345.0f) {}\n    if (i < n) {")
    )
    limits = replace(Limits(), seconds=5.0)
    with LocalExecutor(DeviceSpec("gpu", task.folder), workers=1, limits=limits) as executor:
        executor.submit(0, hang)
        ((_, evaluation),) = executor.wait(60)
        assert evaluation.outcome is Outcome.TIMEOUT
        executor.submit(1, task.starting_kernel)
        ((_, evaluation),) = executor.wait(60)
        assert evaluation.ok, evaluation.message
