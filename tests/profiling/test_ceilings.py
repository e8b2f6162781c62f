"""Ceilings are measured once for each GPU and driver; which of them binds a kernel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mctskernel.core.evaluation import Timing
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Task, shape_label
from mctskernel.core.task_file import load_task
from mctskernel.profiling import ceilings
from mctskernel.profiling.build import Build, build
from mctskernel.profiling.ceilings import (
    Ceilings,
    documented_ceilings,
    measured_ceilings,
    roofline,
    uses_tensor_cores,
)
from mctskernel.profiling.counters import TENSOR_ACTIVE, TENSOR_BUSY
from mctskernel.profiling.gpu.ceiling_kernels import FP32_SOURCE, MMA_SOURCE, wgmma_source
from mctskernel.profiling.gpu.cuda_driver import Gpu, open_gpu
from mctskernel.profiling.guardrails import quarantine_reason
from mctskernel.tasks.builtin import builtin_tasks

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


CEILINGS = Ceilings(copy_bytes_per_second=3e12, fp32_flops_per_second=6e13, tensor_flops_per_second=1e15)
SCALAR = "fma.rn.f32 %f1, %f2, %f3, %f4; // mma.sync would be faster"
TENSOR = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1}, {%r1}, {%r2}, {%f1};"


@pytest.fixture(scope="module")
def matmul() -> Task:
    return load_task(builtin_tasks()["matmul"])


def flops_per_second(task: Task, ptx: str, counters: dict[str, float] | None = None) -> float:
    return roofline(task, [ptx], counters or {}, CEILINGS, 50 << 20).flops_per_second


def test_tensor_instructions_that_never_run_raise_no_ceiling(matmul: Task) -> None:
    assert flops_per_second(matmul, TENSOR, {TENSOR_ACTIVE: 0.0}) == 6e13
    assert flops_per_second(matmul, TENSOR, {TENSOR_BUSY: 0.3697}) == 6e13
    assert flops_per_second(matmul, TENSOR, {TENSOR_ACTIVE: 12.0}) == 1e15
    # A wgmma keeps the pipe busy for over a hundred cycles: few are executed.
    assert flops_per_second(matmul, TENSOR, {TENSOR_ACTIVE: 0.8, TENSOR_BUSY: 95.0}) == 1e15
    assert flops_per_second(matmul, SCALAR, {TENSOR_ACTIVE: 12.0}) == 6e13


def test_a_time_that_only_tensor_cores_reach_is_quarantined_without_them(matmul: Task) -> None:
    shape = matmul.search_shapes[0]
    flops = 2.0 * shape["M"] * shape["N"] * shape["K"]
    seconds = flops / 1.2e14
    timings = [Timing(shape_label(each), seconds, seconds, seconds) for each in matmul.search_shapes]
    scalar = roofline(matmul, [SCALAR], {}, CEILINGS, 50 << 20)
    tensor = roofline(matmul, [TENSOR], {}, CEILINGS, 50 << 20)
    assert "can't have done the work" in quarantine_reason(matmul, timings, scalar)
    assert quarantine_reason(matmul, timings, tensor) == ""


@pytest.mark.parametrize(
    ("source", "architecture", "found"),
    [(FP32_SOURCE, "sm_90", False), (MMA_SOURCE, "sm_90", True), (wgmma_source(), "sm_90a", True)],
    ids=["fma", "mma", "wgmma"],
)
def test_what_the_compiler_writes_is_recognised(source: str, architecture: str, found: bool) -> None:
    made = build(Kernel(source), ("probe",), architecture)
    assert isinstance(made, Build)
    assert uses_tensor_cores([made.ptx], {}) is found
