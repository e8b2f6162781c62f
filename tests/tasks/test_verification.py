"""The shapes, values and tolerances of the built-in tasks find the mistakes that people and searches make."""

from __future__ import annotations

from functools import cache

import pytest

from mctskernel.core.evaluation import Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.core.task_file import load_task
from mctskernel.profiling.model_device import ModelDevice
from mctskernel.tasks import find_task


@cache
def device(task: str) -> ModelDevice:
    return ModelDevice(load_task(find_task(task)))


def rounded(total: str, value: str, *, bits: int) -> str:
    """A sum that loses its lowest bits each time: 13 leave TF32, 16 bfloat16."""
    return f"{total} = __uint_as_float(__float_as_uint({total} + {value}) >> {bits} << {bits})"


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
    ("layernorm", "+\n" + " " * 53 + "__bfloat162float(bias[col])", "", WRONG),
    ("layernorm", "weight[col]", "weight[row]", Outcome.CRASH),
    ("transpose", "row < rows && col < cols", "col < cols", Outcome.CRASH),
    ("transpose", "out[col * rows + row]", "out[col * cols + row]", Outcome.CRASH),
    ("transpose", "= x[", "= 1.0000001f * x[", WRONG),
    ("sum", "}\n        __syncthreads();", "}", Outcome.RACE),
    ("sum", "0.0f;\n    __syncthreads();", "0.0f;", Outcome.RACE),
    ("sum", "i < n ? x[i] : 0.0f", "x[i]", Outcome.CRASH),
    ("sum", "ceil_div(n, BLOCK)", "max(1, n // BLOCK)", WRONG),
    ("rmsnorm", "squares / cols", "squares", WRONG),
    ("rmsnorm", " + eps", "", WRONG),
    ("rmsnorm", "row < rows", "row <= rows", Outcome.CRASH),
    ("rmsnorm", "(value * scale *", "(__bfloat162float(__float2bfloat16(value * scale)) *", WRONG),
    ("rmsnorm", "squares += value * value", rounded("squares", "value * value", bits=16), WRONG),
    ("cross_entropy", " - largest)", ")", WRONG),
    ("cross_entropy", "(largest - chosen)", "0.0f", WRONG),
    ("cross_entropy", "logf(sum)", "sum", WRONG),
    ("cross_entropy", "(int)targets[row]", "row % cols", WRONG),
    ("cumsum", "sum += x[row * cols + col]", rounded("sum", "x[row * cols + col]", bits=13), WRONG),
    ("cumsum", "+ col] = sum", "+ col] = sum - x[row * cols + col]", WRONG),
    ("bias_gelu", "0.044715f", "0.0f", WRONG),
    ("bias_gelu", "bias[col]", "bias[row]", Outcome.CRASH),
    ("bias_gelu", "float inner", "value = __bfloat162float(__float2bfloat16(value)); float inner", WRONG),
    ("matmul_bf16", "sum += __bf", "sum = __uint_as_float(__float_as_uint(sum) >> 16 << 16) + __bf", WRONG),
    ("matmul_bf16", "k < K;", "k < K / 8 * 8;", WRONG),
    ("matmul_bf16", "row < M && col < N", "col < N", Outcome.CRASH),
    ("attention", "float scale = rsqrtf(dim)", "float scale = 1.0f", WRONG),
    (
        "attention",
        "weights[key] = score * scale",
        "weights[key] = __bfloat162float(__float2bfloat16(score * scale))",
        WRONG,
    ),
    ("attention", "total += ", "total = __uint_as_float(__float_as_uint(total) >> 16 << 16) + ", WRONG),
    ("attention", "- largest", "", WRONG),
    ("attention", "largest = partial[0];\n    __syncthreads();", "largest = partial[0];", Outcome.RACE),
    ("attention", "key <= query; ++key", "key < query; ++key", WRONG),
    ("attention", "key <= query; key", "key < seq; key", Outcome.WRONG_RESULT),
    ("attention", "4 * seq", "4 * (seq - 1)", Outcome.CRASH),
    ("conv3x3", "y >= 0 && ", "", Outcome.CRASH),
    ("conv3x3", "&& z < width", "", Outcome.CRASH),
    ("conv3x3", "* 3 + i) * 3 + j", "* 3 + j) * 3 + i", WRONG),
    ("conv3x3", "blockIdx.z % filters", "blockIdx.z / filters", Outcome.CRASH),
    ("histogram", "atomicAdd(&counts[values[i]], 1)", "counts[values[i]] += 1", Outcome.RACE),
    ("histogram", "= 0;", "+= 0;", WRONG),
    ("histogram", "const unsigned char* values", "const signed char* values", Outcome.CRASH),
    ("histogram", "if (i < n)", "if (i <= n)", Outcome.CRASH),
    ("int4_matmul", "(code - 8)", "code", WRONG),
    ("int4_matmul", "k % 2 == 0", "k % 2 == 1", WRONG),
    ("int4_matmul", "(col * K + k) / group", "col * (K / group)", WRONG),
    ("spmv", "offsets[row + 1]", "offsets[row] + (offsets[row + 1] - offsets[row]) / 2", WRONG),
    ("spmv", "x[columns[i]]", "x[i]", WRONG),
    ("spmv", "y[row] = sum", "if (sum != 0.0f) y[row] = sum", WRONG),
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
