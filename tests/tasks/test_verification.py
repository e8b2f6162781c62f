"""The shapes, values and tolerances of the built-in tasks find the mistakes that people and searches make."""

from __future__ import annotations

from functools import cache

import pytest

from mctskernel.core.evaluation import Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.core.task_file import load_task
from mctskernel.profiling.model_device import ModelDevice
from mctskernel.tasks import builtin_tasks, find_task


@cache
def device(task: str) -> ModelDevice:
    return ModelDevice(load_task(find_task(task)))


@pytest.mark.parametrize("task", builtin_tasks())
def test_the_starting_kernel_is_right(task: str) -> None:
    kernel = load_task(find_task(task)).starting_kernel
    evaluation = device(task).evaluate(kernel)
    assert evaluation.ok, evaluation.message
    assert not evaluation.quarantine
    checks = device(task).final_check(kernel)
    assert checks
    assert all(check.passed for check in checks), checks


WRONG = Outcome.WRONG_RESULT

MISTAKES = [
    ("matmul", "k < K;", "k < K - 1;", WRONG),
    ("matmul", "k < K;", "k < K / 4 * 4;", WRONG),
    ("matmul", "row < M && col < N", "row < M", Outcome.CRASH),
    ("matmul", "row < M && col < N", "row < M && col < N && row < 32", WRONG),
    ("matmul", "b[k * N + col]", "b[col * K + k]", WRONG),
    ("matmul", "ceil_div(M, BLOCK_X)", "max(1, M // BLOCK_X)", WRONG),
    (
        "matmul",
        "c[row * N + col] = sum",
        "c[row * N + col] = __uint_as_float(__float_as_uint(sum) >> 13 << 13)",
        WRONG,
    ),
    ("matmul", "c[row * N + col] = sum", "c[row * N + col] += sum", WRONG),
    ("softmax", " - largest", "", WRONG),
    ("softmax", "if (row < rows)", "", Outcome.CRASH),
    ("softmax", "col < cols;", "col < cols / 4 * 4;", WRONG),
    ("softmax", " / sum", "", WRONG),
    ("layernorm", "squares / cols", "squares / (cols - 1)", WRONG),
    ("layernorm", " + eps", "", WRONG),
    ("layernorm", "+ bias[col]", "", WRONG),
    ("layernorm", "weight[col]", "weight[row]", Outcome.CRASH),
    ("transpose", "row < rows && col < cols", "col < cols", Outcome.CRASH),
    ("transpose", "out[col * rows + row]", "out[col * cols + row]", Outcome.CRASH),
    ("transpose", "= x[", "= 1.0000001f * x[", WRONG),
    ("sum", "}\n        __syncthreads();", "}", Outcome.RACE),
    ("sum", "0.0f;\n    __syncthreads();", "0.0f;", Outcome.RACE),
    ("sum", "i < n ? x[i] : 0.0f", "x[i]", Outcome.CRASH),
    ("sum", "ceil_div(n, BLOCK)", "max(1, n // BLOCK)", WRONG),
    ("stencil", "x == 0 || ", "", WRONG),
    ("stencil", " || y == height - 1", "", Outcome.CRASH),
    ("stencil", "+ grid[i + 1]", "", WRONG),
]


@pytest.mark.parametrize(("task", "old", "new", "outcome"), MISTAKES)
def test_a_mistake_is_found(task: str, old: str, new: str, outcome: Outcome) -> None:
    source = load_task(find_task(task)).starting_kernel.source
    assert old in source
    evaluation = device(task).evaluate(Kernel(source.replace(old, new)))
    assert evaluation.outcome is outcome, evaluation.message
    assert bool(evaluation.message) == (not evaluation.ok)
