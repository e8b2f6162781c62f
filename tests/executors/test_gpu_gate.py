"""What follows the evaluation at a GPU's last gate: compute-sanitizer, which stands in here, and the real emulator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mctskernel.core.device import DeviceSpec
from mctskernel.core.evaluation import Evaluation, Guard, Outcome, Source
from mctskernel.core.kernel import Kernel
from mctskernel.executors import gpu_gate
from mctskernel.executors.gpu_gate import emulated, watched
from mctskernel.profiling.emulator.findings import Finding
from mctskernel.profiling.sanitizer import Sanitized, ToolReport
from mctskernel.profiling.sanitizer_output import Tool

PASSED = Evaluation(Outcome.OK, Source.MEASURED, flags=("seen before",))
PLAN = """\
/*
[[launch]]
kernel = "twice"
grid = ["ceil_div(n, 64)"]
block = [64]
args = ["x", "out", "n"]
*/
"""
RIGHT = """\
extern "C" __global__ void twice(const float* x, float* out, int n) {
    int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = 2 * x[i];
}
"""
RACE = """\
extern "C" __global__ void twice(const float* x, float* out, int n) {
    __shared__ float kept[64];
    int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) kept[63 - threadIdx.x] = x[i];
    if (i < n) out[i] = 2 * x[i] + 0 * kept[threadIdx.x];
}
"""
WRONG = RIGHT.replace("2 *", "3 *")
UNSUPPORTED = RIGHT.replace(
    "    int i", '    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");\n    int i'
)


@pytest.fixture
def spec(write_task: Callable[..., Path]) -> DeviceSpec:
    return DeviceSpec("gpu", write_task()).at_last_gate


def test_what_compute_sanitizer_finds_refuses(spec: DeviceSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    reports = (
        ToolReport(Tool.INITCHECK, (Finding("uninitialised_read", "line 4 reads what nobody wrote"),)),
        ToolReport(Tool.RACECHECK, (Finding("race", "line 3 and line 4 meet"),)),
        ToolReport(Tool.SYNCCHECK, remark="no synccheck here"),
    )
    monkeypatch.setattr(gpu_gate, "sanitize", lambda *_, **__: Sanitized(reports, 1.0))
    found = watched(PASSED, Kernel(PLAN + RIGHT), spec)
    assert (found.outcome, found.guard) == (Outcome.RACE, Guard.RACE_CHECKS)
    assert found.message == "compute-sanitizer: line 3 and line 4 meet"
    assert found.flags == ("seen before", "no synccheck here")


def test_a_machine_without_compute_sanitizer_says_so(
    spec: DeviceSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = (ToolReport(Tool.MEMCHECK, remark="it isn't here"),)
    monkeypatch.setattr(gpu_gate, "sanitize", lambda *_, **__: Sanitized(absent, 0.0))
    found = watched(PASSED, Kernel(PLAN + RIGHT), spec)
    assert found.ok
    assert found.flags == ("seen before", "it isn't here")


def test_the_emulator_refuses_a_race_that_the_gpu_survived(spec: DeviceSpec) -> None:
    assert emulated(PASSED, Kernel(PLAN + RIGHT), spec) == PASSED
    found = emulated(PASSED, Kernel(PLAN + RACE), spec)
    assert (found.outcome, found.guard) == (Outcome.RACE, Guard.RACE_CHECKS)
    assert found.message.startswith("The emulator: At n=")


@pytest.mark.parametrize("source", [WRONG, UNSUPPORTED])
def test_the_emulator_is_no_judge_of_results_and_says_what_it_cannot_run(
    spec: DeviceSpec, source: str
) -> None:
    found = emulated(PASSED, Kernel(PLAN + source), spec)
    assert found.ok
    assert "could not check the kernel for races" in found.flags[-1]
