"""Rules for whole kernels of the built-in tasks: results are right at every shape, and planted bugs are caught."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import mctskernel.tasks
from mctskernel.core.evaluation import Evaluation, Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.profiling.model_device import ModelDevice

Results = Callable[..., list[str]]

# A task, the rules that are applied one after another, and how many times faster the model must find the result.
GAINS = [
    ("rmsnorm", ("rows-on-chip",), 15.0),
    ("cross_entropy", ("rows-on-chip", "fast-math"), 15.0),
    ("cumsum", ("scan-rows",), 10.0),
    ("bias_gelu", ("float4-elements", "fast-math"), 1.8),
    ("histogram", ("private-counts", "float4-access"), 30.0),
    ("matmul_bf16", ("matmul-tensor-cores",), 20.0),
    ("int4_matmul", ("matmul-shared-tiling",), 5.0),
    ("conv3x3", ("jam-grid-axis",), 1.2),
    ("conv3x3", ("jam-grid-axis-staged",), 4.0),
]

LOOK_ALIKES = [
    ("cumsum", "scan-rows", "sum += x", "sum = 0.5f * sum + x"),
    ("cumsum", "scan-rows", "float sum = 0.0f", "float sum = 1.0f"),
    ("cumsum", "scan-rows", "out[row * cols + col] = sum", "out[row * cols + col / 2] = sum"),
    ("cumsum", "scan-rows", "out[row * cols + col] = sum", "if (sum > 0.0f) out[row * cols + col] = sum"),
    ("cumsum", "scan-rows", "sum += x", "out[row * cols + col] = sum; sum += x"),
    ("histogram", "private-counts", "&counts[values[i]], 1);", "&counts[values[i]], 1); counts[0] = 1;"),
    ("histogram", "private-counts", "atomicAdd(", "int before = atomicAdd("),
    ("histogram", "private-counts", "atomicAdd(", "atomicMax("),
    ("histogram", "private-counts", "int* counts, int n", "float* counts, int n"),
    ("matmul_bf16", "matmul-tensor-cores", "const __nv_bfloat16* b", "const float* b"),
    (
        "matmul_bf16",
        "matmul-tensor-cores",
        "__bfloat162float(a[row * K + k])",
        "fabsf(__bfloat162float(a[row * K + k]))",
    ),
    ("matmul_bf16", "matmul-tensor-cores", "int k = 0", "int k = 1"),
    ("int4_matmul", "matmul-shared-tiling", "pair >> 4;", "pair >> row;"),
    ("int4_matmul", "matmul-shared-tiling", "int code =", "char code = 0.5f +"),
    ("rmsnorm", "keep-row", "squares", "squares"),
    ("conv3x3", "jam-grid-axis-staged", "(filter * channels", "(row + filter * channels"),
    ("conv3x3", "jam-grid-axis-staged", "channel = 0", "channel = 1"),
    ("conv3x3", "jam-grid-axis", "blockIdx.z / filters", "blockIdx.z / channels"),
    ("conv3x3", "jam-grid-axis", "+ channel) * height + y", "+ channel + filter) * height + y"),
    ("conv3x3", "jam-grid-axis", "float sum = 0.0f;", "float sum = filter;"),
    ("conv3x3", "jam-grid-axis", "sum += __bf", "sum *= 0.5f; sum += __bf"),
]

# What a kernel of the first result is made to do wrong; each must be found out.
PLANTED = [
    ("cumsum", "scan-rows", "        carry += block_total;\n", ""),
    ("cumsum", "scan-rows", "lane > 0 ? before + below : before", "before + below"),
    ("cumsum", "scan-rows", "if (first_col + lane < cols)", "if (true)"),
    ("histogram", "private-counts", "private_counts[bin] = 0;", ""),
    ("histogram", "private-counts", "if (private_counts[bin] != 0)", "if (private_counts[bin] > 1)"),
    ("conv3x3", "jam-grid-axis-staged", "channel < channel0 + CHANNELS", "true"),
    ("conv3x3", "jam-grid-axis-staged", "        __syncthreads();\n        if", "        if"),
    ("conv3x3", "jam-grid-axis", "if (filter < filters)", "if (filter + 1 < filters)"),
    ("conv3x3", "jam-grid-axis", "min(first_filter + item, filters - 1)", "first_filter + item"),
    ("matmul_bf16", "matmul-tensor-cores", "k0 / BK % 2;", "0;"),
    ("matmul_bf16", "matmul-tensor-cores", "__pipeline_wait_prior(1);", "__pipeline_wait_prior(2);"),
    ("matmul_bf16", "matmul-tensor-cores", "k0 + part + e < K;", "true;"),
]


@cache
def _task(name: str) -> Task:
    return load_task(Path(mctskernel.tasks.__path__[0]) / name)


@cache
def _device(name: str) -> ModelDevice:
    return ModelDevice(_task(name))


@cache
def _start(name: str) -> Evaluation:
    return _device(name).evaluate(_task(name).starting_kernel)


@pytest.mark.parametrize(
    ("name", "rules", "gain"), GAINS, ids=["-".join((case[0], *case[1])) for case in GAINS]
)
def test_a_chain_is_right_at_every_shape_and_faster(
    results: Results, name: str, rules: tuple[str, ...], gain: float
) -> None:
    text = _task(name).starting_kernel.source
    for rule in rules:
        text = results(_task(name), text, rule)[0]
    after = _device(name).evaluate(Kernel(text))
    assert after.ok, after.message
    assert all(check.passed for check in _device(name).final_check(Kernel(text)))
    assert _start(name).timings[0].seconds > gain * after.timings[0].seconds


@pytest.mark.parametrize(("name", "rule", "old", "new"), LOOK_ALIKES)
def test_a_look_alike_is_left_alone(results: Results, name: str, rule: str, old: str, new: str) -> None:
    source = _task(name).starting_kernel.source
    assert old in source
    assert results(_task(name), source.replace(old, new), rule) == []


@pytest.mark.parametrize(("name", "rule", "old", "new"), PLANTED)
def test_a_planted_bug_is_found_out(results: Results, name: str, rule: str, old: str, new: str) -> None:
    text = results(_task(name), _task(name).starting_kernel.source, rule)[0]
    assert old in text
    evaluation = _device(name).evaluate(Kernel(text.replace(old, new)))
    assert evaluation.outcome in {Outcome.WRONG_RESULT, Outcome.RACE, Outcome.CRASH}


class TestKeptRows:
    """Rows that are kept in registers as far as these reach."""

    @pytest.fixture
    def text(self, results: Results) -> str:
        text = _task("softmax").starting_kernel.source
        for rule in ("parallel-rows", "float4-access", "keep-row"):
            text = results(_task("softmax"), text, rule)[0]
        return text.replace("#define BLOCK 256", "#define BLOCK 64")

    def test_what_does_not_fit_is_read_again(self, text: str) -> None:
        short = text.replace("#define ROW_ITEMS 4", "#define ROW_ITEMS 1")
        assert short != text
        evaluation = _device("softmax").evaluate(Kernel(short))
        assert evaluation.ok, evaluation.message

    def test_a_rest_that_is_left_out_is_found_out(self, text: str) -> None:
        short = text.replace("#define ROW_ITEMS 4", "#define ROW_ITEMS 1")
        rest = "for (int col = 4 * threadIdx.x + ROW_ITEMS * (4 * BLOCK); col < wide_cols;"
        assert rest in short
        evaluation = _device("softmax").evaluate(Kernel(short.replace(rest, rest.replace("wide_cols", "0"))))
        assert evaluation.outcome is Outcome.WRONG_RESULT

    def test_a_row_that_is_written_is_not_kept(self, results: Results) -> None:
        text = results(_task("softmax"), _task("softmax").starting_kernel.source, "parallel-rows")[0]
        assert results(_task("softmax"), text, "keep-row")
        in_place = text.replace("const float* x", "float* x").replace(
            "out[row * cols + col] =", "x[row * cols + col] ="
        )
        assert results(_task("softmax"), in_place, "keep-row") == []

    def test_a_conditional_read_is_not_kept(self, results: Results) -> None:
        text = results(_task("softmax"), _task("softmax").starting_kernel.source, "parallel-rows")[0]
        read = "expf(x[row * cols + col] - largest)"
        rare = text.replace(read, f"(col > 0 ? {read} : 0.0f)").replace(
            "largest = fmaxf(largest, x[row * cols + col]);",
            "if (col > 1) largest = fmaxf(largest, x[row * cols + col]);",
        )
        assert rare != text
        assert results(_task("softmax"), rare, "keep-row") == []


def test_a_bias_along_the_row_of_a_flat_index_moves_as_vectors(results: Results) -> None:
    task = _task("bias_gelu")
    flat = (
        task.starting_kernel.source.replace(
            'grid = ["ceil_div(cols, BLOCK_X)", "ceil_div(rows, BLOCK_Y)"]',
            'grid = ["ceil_div(rows * cols, BLOCK_X)"]',
        )
        .replace('block = ["BLOCK_X", "BLOCK_Y"]', 'block = ["BLOCK_X"]')
        .replace("#define BLOCK_X 32", "#define BLOCK_X 256")
        .replace("int row = blockIdx.y * blockDim.y + threadIdx.y;\n", "")
        .replace("int col =", "int i =")
        .replace("row < rows && col < cols", "i < rows * cols")
        .replace("row * cols + col", "i")
        .replace("bias[col]", "bias[i % cols]")
    )
    (text,) = results(task, flat, "float4-elements")
    assert "cols % 8 == 0 && is_aligned(&bias[i % cols])" in text
    evaluation = _device("bias_gelu").evaluate(Kernel(text))
    assert evaluation.ok, evaluation.message
    careless = text.replace("cols % 8 == 0 && ", "")
    assert _device("bias_gelu").evaluate(Kernel(careless)).outcome is not Outcome.OK


def test_only_what_is_not_read_is_streamed(results: Results) -> None:
    task = _task("softmax")
    source = task.starting_kernel.source
    (text,) = results(task, source, "streaming-hints")
    assert "__stcs(&out[row * cols + col], expf(" in text
    evaluation = _device("softmax").evaluate(Kernel(text))
    assert evaluation.ok, evaluation.message
    assert (
        results(
            task, source.replace("out[row * cols + col] =", "out[row * cols + col] +="), "streaming-hints"
        )
        == []
    )
    assert results(task, source.replace("expf(x", "out[row] * expf(x"), "streaming-hints") == []


def test_a_block_that_is_as_large_as_its_output_keeps_its_size(results: Results) -> None:
    task = _task("histogram")
    texts = [
        text
        for rule in ("smaller-blocks", "larger-blocks")
        for text in results(task, task.starting_kernel.source, rule)
    ]
    assert texts
    assert all("#define BINS 256" in text for text in texts)


def test_only_quotients_of_floats_are_approximated(results: Results) -> None:
    task = _task("layernorm")
    source = task.starting_kernel.source
    (text,) = results(task, source, "fast-math")
    assert "__fdividef(sum, cols)" in text
    whole = source.replace("float sum = 0.0f", "int half = cols / 2; float sum = 0.0f")
    assert "cols / 2" in results(task, whole, "fast-math")[0]
    precise = source.replace("float sum = 0.0f", "double sum = 0.0")
    assert results(task, precise, "fast-math") == []


def test_tanh_has_a_form_for_compilers_without_the_intrinsic(results: Results) -> None:
    task = _task("bias_gelu")
    texts = results(task, task.starting_kernel.source, "fast-math")
    (text,) = [text for text in texts if "tanh_by_exp(inner)" in text]
    evaluation = _device("bias_gelu").evaluate(Kernel(text))
    assert evaluation.ok, evaluation.message
    assert all(check.passed for check in _device("bias_gelu").final_check(Kernel(text)))


def test_what_nobody_writes_is_read_with_a_hint(results: Results) -> None:
    task = _task("spmv")
    source = task.starting_kernel.source
    read_only, streamed = results(task, source, "read-only-loads")
    assert "__ldg(&values[i]) * __ldg(&x[columns[i]])" in read_only
    for text in (read_only, streamed):
        evaluation = _device("spmv").evaluate(Kernel(text))
        assert evaluation.ok, evaluation.message
    written = source.replace("y[row] = sum;", "y[row] = sum + y[0];").replace("const float* x", "float* x")
    assert all("&y[" not in text for text in results(task, written, "read-only-loads"))
    changed = source.replace("const float* x", "float* x").replace(
        "y[row] = sum;", "y[row] = sum; x[0] = sum;"
    )
    assert all("ldg(&x[" not in text for text in results(task, changed, "read-only-loads"))
    pointed = source.replace("float sum = 0.0f;", "float sum = 0.0f; const float* other = x;")
    assert all("ldg(&x[" not in text for text in results(task, pointed, "read-only-loads"))


def test_vectors_are_read_with_a_hint_as_a_whole(results: Results) -> None:
    task = _task("softmax")
    text = results(task, task.starting_kernel.source, "rows-on-chip")[0]
    read_only = results(task, text, "read-only-loads")[0]
    assert "__ldg(reinterpret_cast<const float4*>(&x[" in read_only
    evaluation = _device("softmax").evaluate(Kernel(read_only))
    assert evaluation.ok, evaluation.message
