"""Blocks in groups of rows: every block has its work still, and kernels that wouldn't gain keep their order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mctskernel.tasks
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.profiling.model_device import ModelDevice

RULE = "grouped-blocks"
Results = Callable[[Task, str, str], list[str]]


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task(Path(mctskernel.tasks.__path__[0]) / "matmul")


@pytest.fixture(scope="module")
def tiled(task: Task, results: Results) -> str:
    return results(task, task.starting_kernel.source, "matmul-shared-tiling")[0]


def test_a_tiled_kernel_stays_right(task: Task, results: Results, tiled: str) -> None:
    texts = results(task, tiled, RULE)
    assert [f"#define GROUP {size}u" in text for size, text in zip((8, 4, 16), texts, strict=True)] == [
        True
    ] * 3
    device = ModelDevice(task)
    small = texts[1].replace("GROUP 4u", "GROUP 3u")
    evaluation = device.evaluate(Kernel(small))
    assert evaluation.ok, evaluation.message
    wrong = small.replace("min(gridDim.y - first_row, GROUP)", "GROUP")
    assert wrong != small
    assert not device.evaluate(Kernel(wrong)).ok
    assert results(task, texts[0], RULE) == []


@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from([4, 8, 16]))
def test_every_place_is_taken_once(columns: int, rows: int, group: int) -> None:
    block = np.arange(columns * rows)
    first = block // (group * columns) * group
    in_group = np.minimum(rows - first, group)
    x, y = block % (group * columns) // in_group, first + block % (group * columns) % in_group
    assert len(set(zip(x.tolist(), y.tolist(), strict=True))) == columns * rows
    assert x.max() < columns
    assert y.max() < rows


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("blockIdx.y", "threadIdx.y"),
        ("__global__", "__device__ int place() { return blockIdx.x; }\nextern \"C\" __global__"),
        ("__shared__ ", ""),
        ("grid = [", "grid = [1, "),
    ],
)  # fmt: skip
def test_other_kernels_keep_their_order(task: Task, results: Results, tiled: str, old: str, new: str) -> None:
    assert old in tiled
    assert results(task, tiled.replace(old, new, -1 if old != "__global__" else 1), RULE) == []
