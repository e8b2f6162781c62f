"""Sums in warps before an atomic addition: right for every length, and only where all threads add to one address."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

import mctskernel.tasks
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.profiling.model_device import ModelDevice

RULE = "warp-atomics"
SOURCE = """\
/*
[[launch]]
kernel = "clear"
grid = [1]
block = [1]
args = ["out"]

[[launch]]
kernel = "add"
grid = ["ceil_div(n, BLOCK)"]
block = ["BLOCK"]
args = ["x", "out", "n"]
*/
#define BLOCK 64

extern "C" __global__ void clear(float* out) { out[0] = 0.0f; }

extern "C" __global__ void add(const float* x, float* out, int n) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) {
        float value = x[i];
        atomicAdd(&out[0], value);
    }
}
"""
GUARDED = """\
    if (i < n) {
        float value = x[i];
        atomicAdd(&out[0], value);
    }
"""
LEAVING = """\
    if (i >= n) return;
    atomicAdd(out, x[i]);
"""
Results = Callable[[Task, str, str], list[str]]


@pytest.fixture(scope="module")
def task() -> Task:
    whole = load_task(Path(mctskernel.tasks.__path__[0]) / "sum")
    return dataclasses.replace(whole, search_shapes=({"n": 5000},), starting_kernel=Kernel(SOURCE))


@pytest.fixture(scope="module")
def device(task: Task) -> ModelDevice:
    return ModelDevice(task)


@pytest.mark.parametrize("body", [GUARDED, LEAVING])
def test_one_lane_adds_for_its_warp(task: Task, device: ModelDevice, results: Results, body: str) -> None:
    (text,) = results(task, SOURCE.replace(GUARDED, body), RULE)
    after, before = device.evaluate(Kernel(text)), device.evaluate(task.starting_kernel)
    assert after.ok, f"{after.message}\n{text}"
    assert before.ok, before.message
    assert all(check.passed for check in device.final_check(Kernel(text)))
    assert results(task, text, RULE) == []
    wrong = text.replace("offset = 16", "offset = 8")
    assert not device.evaluate(Kernel(wrong)).ok


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("&out[0]", "&out[i]"),
        ("&out[0]", "&out[blockIdx.x]"),
        ("atomicAdd(&", "atomicMax((int*)&"),
        ("        atomicAdd", "        float before = atomicAdd"),
        ("        atomicAdd", "        if (value > 0.0f) atomicAdd"),
        ("float value = x[i];", "float value = x[i] + out[0];"),
        ("float value = x[i];", "float value = __shfl_sync(0xffffffff, x[i], 0);"),
        ("#define BLOCK 64", "#define BLOCK 48"),
        ("const float* x, float* out", "const float* x, double* out"),
    ],
)
def test_other_additions_are_left_alone(task: Task, results: Results, old: str, new: str) -> None:
    assert old in SOURCE
    assert results(task, SOURCE.replace(old, new), RULE) == []
