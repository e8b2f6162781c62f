"""Tensor cores with several steps under way: right for operands of either order, at every shape."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import mctskernel.tasks
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.profiling.model_device import ModelDevice

RULE = "matmul-tensor-pipeline"
Results = Callable[[Task, str, str], list[str]]


def transposed(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    found: np.ndarray = a.T.astype(np.float64) @ b.T.astype(np.float64)
    return found


@pytest.fixture(scope="module")
def task() -> Task:
    """The built-in task at few shapes, one of them with more steps than are under way at once."""
    whole = load_task(Path(mctskernel.tasks.__path__[0]) / "matmul_bf16")
    return dataclasses.replace(
        whole,
        search_shapes=({"M": 64, "N": 128, "K": 64},),
        verify_shapes=(
            {"M": 17, "N": 5, "K": 67},
            {"M": 40, "N": 72, "K": 24},
            {"M": 66, "N": 136, "K": 232},
        ),
        held_out_shapes=({"M": 1, "N": 131, "K": 165},),
    )


@pytest.fixture(scope="module")
def device(task: Task) -> ModelDevice:
    return ModelDevice(task)


def check(device: ModelDevice, text: str) -> None:
    after = device.evaluate(Kernel(text))
    assert after.ok, f"{after.message}\n{text}"
    failed = [each for each in device.final_check(Kernel(text)) if not each.passed]
    assert not failed, f"{failed[0]}\n{text}"


def test_products_are_right_at_every_shape(task: Task, device: ModelDevice, results: Results) -> None:
    texts = results(task, task.starting_kernel.source, RULE)
    assert len(texts) == 4
    assert all('shared = "2 * STAGES' in text for text in texts)
    check(device, texts[-1])
    assert results(task, texts[-1], RULE) == []


def test_both_operands_may_be_transposed(task: Task, results: Results) -> None:
    source = task.starting_kernel.source.replace("row * K + k", "k * M + row").replace(
        "k * N + col", "col * K + k"
    )
    a, b = task.inputs
    other = dataclasses.replace(
        task,
        inputs=(dataclasses.replace(a, shape=("K", "M")), dataclasses.replace(b, shape=("N", "K"))),
        starting_kernel=Kernel(source),
        independent="",
        reference=transposed,
    )
    text = results(other, source, RULE)[-1]
    assert "load_transposed(left" in text
    assert "load_matrices(right" in text
    check(ModelDevice(other), text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("__pipeline_wait_prior(STAGES - 2);", "__pipeline_wait_prior(STAGES - 1);"),
        ("(step + (STAGES - 1)) % STAGES", "step % STAGES"),
        ("        __syncthreads();\n", ""),
        ("e / 2 * 8", "e % 2 * 8"),
        ("if (k0 < K) {", "if (k0 + BK < K) {"),
    ],
)
def test_a_planted_bug_is_found_out(
    task: Task, device: ModelDevice, results: Results, old: str, new: str
) -> None:
    text = results(task, task.starting_kernel.source, RULE)[-1]
    assert old in text
    assert not device.evaluate(Kernel(text.replace(old, new))).ok


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("const __nv_bfloat16* b", "const float* b"),
        ("__bfloat162float(a[row * K + k])", "fabsf(__bfloat162float(a[row * K + k]))"),
        ("int k = 0", "int k = 1"),
        ("a[row * K + k]", "a[row * K + k + col]"),
        ("sum += ", "sum = "),
        ('"a", "b", "c"', '"a", "c", "c"'),
    ],
)
def test_other_kernels_are_left_alone(task: Task, results: Results, old: str, new: str) -> None:
    source = task.starting_kernel.source
    assert old in source
    assert results(task, source.replace(old, new), RULE) == []
