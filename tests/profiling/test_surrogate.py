from __future__ import annotations

import pytest

from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.profiling.architecture import load_architecture
from mctskernel.profiling.model_device import ModelDevice
from mctskernel.profiling.pricing import PricingDevice, prediction_of
from tests.conftest import WriteTask


@pytest.fixture
def task(write_task: WriteTask) -> Task:
    return load_task(write_task())


@pytest.fixture
def device(task: Task) -> PricingDevice:
    return PricingDevice(task, load_architecture("H100"))


def test_the_surrogate_says_what_the_model_device_says(task: Task, device: PricingDevice) -> None:
    judged = ModelDevice(task).evaluate(task.starting_kernel)
    predicted = prediction_of(device.evaluate(task.starting_kernel))
    assert predicted is not None
    assert predicted.seconds == pytest.approx(judged.timings[0].seconds)
    assert predicted.terms == pytest.approx(judged.terms)


def test_a_kernel_that_is_wrong_is_priced_all_the_same(task: Task, device: PricingDevice) -> None:
    wrong = Kernel(task.starting_kernel.source.replace("2.0f * x[i]", "3.0f * x[i]"))
    assert not ModelDevice(task).evaluate(wrong).ok
    assert prediction_of(device.evaluate(wrong)) is not None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("float* out", "flout* out"),
        ('"n"]', '"m"]'),
        ("#define BLOCK 64", "#define BLOCK 2048"),
    ],
)
def test_what_cannot_be_built_or_launched_has_no_prediction(
    task: Task, device: PricingDevice, before: str, after: str
) -> None:
    source = task.starting_kernel.source
    assert before in source
    assert prediction_of(device.evaluate(Kernel(source.replace(before, after)))) is None
