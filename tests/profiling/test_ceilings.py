"""Ceilings are measured once for each GPU and driver, and a file that can't be used is written anew."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from mctskernel.profiling import ceilings
from mctskernel.profiling.ceilings import (
    Ceilings,
    documented_ceilings,
    highest,
    measured_ceilings,
)
from mctskernel.profiling.gpu.cuda_driver import Gpu, open_gpu

GPU = Gpu(
    name="NVIDIA H100 80GB HBM3",
    uuid="6e004226",
    driver="13.0",
    architecture="sm_90",
    l2_bytes=50 << 20,
    max_shared_bytes=232448,
    dram_bytes_per_second=3.35e12,
)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Rates come from a table; every measurement of the copy leaves the GPU's UUID here."""
    asked: list[str] = []

    def copy_rate(gpu: Gpu) -> float:
        asked.append(gpu.uuid)
        return 3e12

    monkeypatch.setattr(ceilings, "copy_rate", copy_rate)
    monkeypatch.setattr(ceilings, "fp32_rate", lambda _: 6e13)
    monkeypatch.setattr(ceilings, "tensor_rate", lambda _: 9e14)
    return asked


def test_they_are_measured_once_per_device_and_driver(measured: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"
    first = measured_ceilings(GPU, folder)
    assert first == Ceilings(3e12, 6e13, 9e14)
    assert measured_ceilings(GPU, folder) == first
    assert measured == [GPU.uuid]
    measured_ceilings(replace(GPU, uuid="other"), folder)
    measured_ceilings(replace(GPU, driver="13.1"), folder)
    assert measured == [GPU.uuid, "other", GPU.uuid]


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"copy_bytes_per_second": -1, "fp32_flops_per_second": 1, "tensor_flops_per_second": 1}',
        '{"copy_bytes_per_second": 1, "fp32_flops_per_second": "x", "tensor_flops_per_second": 1}',
    ],
)
def test_a_damaged_file_is_measured_again(measured: list[str], tmp_path: Path, text: str) -> None:
    measured_ceilings(GPU, tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_text(text)
    assert measured_ceilings(GPU, tmp_path) == Ceilings(3e12, 6e13, 9e14)
    assert measured_ceilings(GPU, tmp_path) == Ceilings(3e12, 6e13, 9e14)
    assert len(measured) == 2


def test_a_time_must_beat_both_what_was_measured_and_what_is_documented() -> None:
    documented = documented_ceilings(GPU)
    assert documented.copy_bytes_per_second == GPU.dram_bytes_per_second
    both = highest(Ceilings(3e12, 9e13, 6e14), documented)
    assert both.copy_bytes_per_second == GPU.dram_bytes_per_second
    assert both.fp32_flops_per_second == 9e13
    assert both.tensor_flops_per_second == documented.tensor_flops_per_second > 9e14


def test_an_unknown_gpu_is_bound_by_what_was_measured_unless_its_tensor_cores_want_more_than_mma() -> None:
    measured = Ceilings(1e12, 4e13, 2e14)
    consumer = highest(measured, documented_ceilings(replace(GPU, architecture="sm_120")))
    assert consumer.tensor_flops_per_second == 2e14
    blackwell = highest(measured, documented_ceilings(replace(GPU, architecture="sm_103")))
    assert math.isinf(blackwell.tensor_flops_per_second)
    assert blackwell.fp32_flops_per_second == 4e13
    # What is measured with mma.sync there is half of what the chip can do.
    described = highest(measured, documented_ceilings(replace(GPU, architecture="sm_100")))
    assert 2.25e15 < described.tensor_flops_per_second < 2.5e15


@pytest.mark.gpu
def test_measured_ceilings_are_near_what_is_documented(tmp_path: Path) -> None:
    gpu = open_gpu()
    found = measured_ceilings(gpu, tmp_path)
    documented = documented_ceilings(gpu)
    assert 0.8 < found.copy_bytes_per_second / gpu.dram_bytes_per_second < 1.0
    if documented.fp32_flops_per_second:
        assert 0.9 < found.fp32_flops_per_second / documented.fp32_flops_per_second < 1.05
        assert 0.8 < found.tensor_flops_per_second / documented.tensor_flops_per_second < 1.05
    assert measured_ceilings(gpu, tmp_path) == found
