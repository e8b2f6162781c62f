"""The shapes, values and tolerances of the built-in tasks find the mistakes that people and searches make."""

from __future__ import annotations

from functools import cache

import pytest

from mctskernel.core.evaluation import Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.core.task_file import load_task
from mctskernel.profiling.model_device import ModelDevice
from mctskernel.tasks.builtin import find_task


@cache
def device(task: str) -> ModelDevice:
    return ModelDevice(load_task(find_task(task)))


def rounded(total: str, value: str, *, bits: int) -> str:
    """A sum that loses its lowest bits each time: 13 leave TF32, 16 bfloat16."""
    return f"{total} = __uint_as_float(__float_as_uint({total} + {value}) >> {bits} << {bits})"


pytestmark = pytest.mark.slow  # 16 tasks on the model device

WRONG = Outcome.WRONG_RESULT

MISTAKES = [
    ("matmul", "k < K;", "k < K - 1;", WRONG),
    ("matmul", "k < K;", "k < K / 4 * 4;", WRONG),
    ("matmul", "row < M && col < N", "row < M", Outcome.CRASH),
    ("softmax", " - largest", "", WRONG),
    ("softmax", "if (row < rows)", "", Outcome.CRASH),
    ("layernorm", "squares / cols", "squares / (cols - 1)", WRONG),
    ("layernorm", "weight[col]", "weight[row]", Outcome.CRASH),
    ("transpose", "row < rows && col < cols", "col < cols", Outcome.CRASH),
    ("transpose", "= x[", "= 1.0000001f * x[", WRONG),
    ("sum", "}\n        __syncthreads();", "}", Outcome.RACE),
    ("sum", "i < n ? x[i] : 0.0f", "x[i]", Outcome.CRASH),
    ("sum", "ceil_div(n, BLOCK)", "max(1, n // BLOCK)", WRONG),
    ("rmsnorm", "squares / cols", "squares", WRONG),
    ("rmsnorm", "row < rows", "row <= rows", Outcome.CRASH),
    ("cross_entropy", " - largest)", ")", WRONG),
    ("cumsum", "sum += x[row * cols + col]", rounded("sum", "x[row * cols + col]", bits=13), WRONG),
    ("bias_gelu", "0.044715f", "0.0f", WRONG),
    ("bias_gelu", "bias[col]", "bias[row]", Outcome.CRASH),
    ("matmul_bf16", "sum += __bf", "sum = __uint_as_float(__float_as_uint(sum) >> 16 << 16) + __bf", WRONG),
    ("matmul_bf16", "row < M && col < N", "col < N", Outcome.CRASH),
    ("attention", "float scale = rsqrtf(dim)", "float scale = 1.0f", WRONG),
    ("attention", "largest = partial[0];\n    __syncthreads();", "largest = partial[0];", Outcome.RACE),
    ("attention", "key <= query; key", "key < seq; key", Outcome.WRONG_RESULT),
    ("attention", "4 * seq", "4 * (seq - 1)", Outcome.CRASH),
    ("conv3x3", "y >= 0 && ", "", Outcome.CRASH),
    ("conv3x3", "* 3 + i) * 3 + j", "* 3 + j) * 3 + i", WRONG),
    ("histogram", "atomicAdd(&counts[values[i]], 1)", "counts[values[i]] += 1", Outcome.RACE),
    ("histogram", "= 0;", "+= 0;", WRONG),
    ("histogram", "const unsigned char* values", "const signed char* values", Outcome.CRASH),
    ("int4_matmul", "(code - 8)", "code", WRONG),
    ("spmv", "offsets[row + 1]", "offsets[row] + (offsets[row + 1] - offsets[row]) / 2", WRONG),
    ("stencil", "x == 0 || ", "", WRONG),
    ("stencil", " || y == height - 1", "", Outcome.CRASH),
]


@pytest.mark.parametrize(("task", "old", "new", "outcome"), MISTAKES)
def test_a_mistake_is_found(task: str, old: str, new: str, outcome: Outcome) -> None:
    source = load_task(find_task(task)).starting_kernel.source
    assert old in source
    evaluation = device(task).evaluate(Kernel(source.replace(old, new)))
    assert evaluation.outcome is outcome, evaluation.message
    assert bool(evaluation.message) == (not evaluation.ok)
