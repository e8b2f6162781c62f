from __future__ import annotations

import math

import pytest

from mctskernel.core.device import DeviceError
from mctskernel.core.evaluation import Evaluation, Outcome, Source, Timing
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.profiling.architecture import known_architectures, load_architecture
from mctskernel.profiling.model_device import ModelDevice
from mctskernel.profiling.surrogate import PricingDevice, architecture_for, prediction_of
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


def test_only_modelled_times_are_predictions() -> None:
    timings = (Timing("a", 1e-3, 1e-3, 1e-3), Timing("b", 4e-3, 4e-3, 4e-3))
    modelled = Evaluation(Outcome.OK, Source.MODELLED, timings=timings, terms={"DRAM": 1e-3})
    found = prediction_of(modelled)
    assert found is not None
    assert math.isclose(found.seconds, 2e-3)
    assert prediction_of(Evaluation(Outcome.OK, Source.MEASURED, timings=timings)) is None
    assert prediction_of(Evaluation(Outcome.OK, Source.MODELLED)) is None
    assert prediction_of(None) is None


@pytest.mark.parametrize(
    ("gpu", "code", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "sm_90", "H100"),
        ("NVIDIA H100 PCIe", "sm_90", "H100"),
        ("NVIDIA H200", "sm_90", "H200"),
        ("NVIDIA GeForce RTX 4090", "sm_89", "RTX4090"),
        ("NVIDIA A100-SXM4-80GB", "sm_80", "A100"),
        ("NVIDIA Something New", "sm_80", "A100"),
    ],
)
def test_the_description_is_chosen_by_the_gpus_name(gpu: str, code: str, name: str) -> None:
    assert name in known_architectures()
    assert architecture_for(gpu, code) == name


def test_a_gpu_that_nothing_describes_is_a_sentence() -> None:
    with pytest.raises(DeviceError, match=r"NVIDIA Old.*calibrate"):
        architecture_for("NVIDIA Old", "sm_35")
