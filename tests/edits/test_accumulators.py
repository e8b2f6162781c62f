"""Scalar replacement: where an element may wait in a register, and where somebody would notice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import mctskernel.tasks
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.profiling.model_device import ModelDevice

RULE = "scalar-replacement"
START = "        c[row * N + col] = 0.0f;\n"
ADD = "c[row * N + col] += a[row * K + k] * b[k * N + col];"
ZERO_ELSEWHERE = f"{START}        if (row < 0) return;\n"

Results = Callable[[Task, str, str], list[str]]


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task(Path(mctskernel.tasks.__path__[0]) / "matmul")


@pytest.fixture(scope="module")
def in_memory(task: Task) -> str:
    """The matmul that adds up in global memory."""
    source = task.starting_kernel.source
    for old, new in [
        ("        float sum = 0.0f;\n", START),
        ("sum += a[row * K + k] * b[k * N + col];", ADD),
        ("        c[row * N + col] = sum;\n", ""),
    ]:
        assert source.count(old) == 1
        source = source.replace(old, new)
    return source


def test_a_sum_in_global_memory_moves_to_a_register(task: Task, in_memory: str, results: Results) -> None:
    (text,) = results(task, in_memory, RULE)
    assert text.count("c[row * N + col]") == 1
    assert "float total = 0.0f;" in text
    assert ModelDevice(task).evaluate(Kernel(text)).ok
    assert results(task, text, RULE) == []
    assert results(task, text, "matmul-shared-tiling"), "the loop has the form that other rules know"


def test_without_a_first_value_it_is_loaded_where_the_loop_runs(
    task: Task, in_memory: str, results: Results
) -> None:
    (text,) = results(task, in_memory.replace(START, ZERO_ELSEWHERE), RULE)
    assert "if (0 < K) {\n            float total = c[row * N + col];" in text
    assert ModelDevice(task).evaluate(Kernel(text)).ok


@pytest.mark.parametrize("addition", ["c[row * N + col] = c[row * N + col] + 1.0f;", "if (k > 2) " + ADD])
def test_other_ways_to_add(task: Task, in_memory: str, results: Results, addition: str) -> None:
    (text,) = results(task, in_memory.replace(ADD, addition), RULE)
    assert text.count("c[row * N + col]") == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("c[row * N + col] +=", "c[row * N + k] +="),
        ("c[row * N + col] += a", "c[row * N + col] = a"),
        (ADD, f"{ADD} __syncthreads();"),
        (ADD, f"{ADD} if (k > 5) return;"),
        (ADD, "atomicAdd(&c[row * N + col], 1.0f);"),
        (ADD, f"{ADD} c[0] = 1.0f;"),
        (ADD, f"int at = row * N + k; {ADD.replace('row * N + col', 'at', 1)}"),
        (START, f"{START} float* alias = c;"),
        ("float* c", "volatile float* c"),
        ('"b", "c"', '"c", "c"'),
    ],
)
def test_what_others_could_see_stays_in_memory(
    task: Task, in_memory: str, results: Results, old: str, new: str
) -> None:
    assert old in in_memory
    assert results(task, in_memory.replace(old, new), RULE) == []


@pytest.mark.parametrize("addition", [f"if (k > 2) {ADD}", f"if (k > 2) continue; {ADD}"])
def test_a_store_that_might_not_happen_is_not_made_to(
    task: Task, in_memory: str, results: Results, addition: str
) -> None:
    source = in_memory.replace(START, ZERO_ELSEWHERE).replace(ADD, addition)
    assert results(task, source, RULE) == []
