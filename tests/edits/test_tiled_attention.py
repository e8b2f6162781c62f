"""Attention with many queries a block: right at awkward shapes, for both kinds of half precision, causal or not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import mctskernel.tasks
from mctskernel.core.evaluation import Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.edits.limits import Limits
from mctskernel.profiling.model_device import ModelDevice

RULE = "tiled-attention"
Results = Callable[..., list[str]]


def full_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[2])
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    found: np.ndarray = weights @ v / weights.sum(axis=2, keepdims=True)
    return found


@pytest.fixture(scope="module")
def task() -> Task:
    """The built-in task, timed at a shape that is quickly judged: of 35 dimensions, so that tiles are 48 wide."""
    whole = load_task(Path(mctskernel.tasks.__path__[0]) / "attention")
    return dataclasses.replace(whole, search_shapes=({"heads": 2, "seq": 100, "dim": 35},))


@pytest.fixture(scope="module")
def device(task: Task) -> ModelDevice:
    return ModelDevice(task)


def check(device: ModelDevice, text: str) -> None:
    after = device.evaluate(Kernel(text))
    assert after.ok, f"{after.message}\n{text}"
    failed = [each for each in device.final_check(Kernel(text)) if not each.passed]
    assert not failed, f"{failed[0]}\n{text}"


def test_a_tiled_kernel_is_right_at_every_shape(task: Task, device: ModelDevice, results: Results) -> None:
    texts = results(task, task.starting_kernel.source, RULE)
    assert len(texts) == 4
    text = texts[-1]
    assert "#define DIMS 48" in text
    assert "shared =" not in text
    check(device, text)
    assert results(task, text, RULE) == []


def test_all_keys_and_the_other_kind_of_half(task: Task, results: Results) -> None:
    source = (
        task.starting_kernel.source.replace("key <= query", "key < seq")
        .replace("cuda_bf16.h", "cuda_fp16.h")
        .replace("__nv_bfloat16", "__half")
        .replace("__bfloat162float", "__half2float")
        .replace("__float2bfloat16", "__float2half")
        .replace("rsqrtf(dim)", "rsqrtf(dim) * 2.0f * 0.5f")
    )
    half = dataclasses.replace(
        task,
        inputs=tuple(dataclasses.replace(x, dtype="float16") for x in task.inputs),
        outputs=tuple(dataclasses.replace(x, dtype="float16") for x in task.outputs),
        starting_kernel=Kernel(source),
        reference=full_attention,
    )
    text = results(half, source, RULE)[0]
    assert ".f32.f16.f16.f32" in text
    assert "key < length" in text
    check(ModelDevice(half), text)


def test_every_size_is_within_the_limits(task: Task, results: Results) -> None:
    wide = dataclasses.replace(task, search_shapes=({"heads": 2, "seq": 512, "dim": 300},))
    texts = results(wide, task.starting_kernel.source, RULE)
    assert len(texts) == 4
    assert all("#define DIMS 128" in text for text in texts)
    assert all(Limits(wide, wide.search_shapes).allow(Kernel(text)) for text in texts)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("key <= query; key += BLOCK / 32", "key <= query; key += BLOCK / 16"),
        ("int lane = tid % 32", "int lane = tid % 16"),
        ("int query = blockIdx.x", "int query = blockIdx.x / 2"),
        ("int first = blockIdx.y * seq", "int first = blockIdx.y * dim"),
        ("k[(first + key) * dim + i]", "k[(first + key) * dim + 2 * i]"),
        ("k[(first + key) * dim + i]", "k[(first + query) * dim + i]"),
        ("v[(first + key) * dim + i]", "k[(first + key) * dim + i]"),
        ("out[(first + query) * dim + i] =", "out[(first + query) * dim + i] +="),
        ("largest = fmaxf(largest, weights[key])", "largest = fminf(largest, weights[key])"),
        ("expf(weights[key] - largest)", "exp2f(weights[key] - largest)"),
        ("score * scale", "score * scale + 1.0f"),
        ("score * scale", "fabsf(score) * scale"),
        ("float scale = rsqrtf(dim)", "int scale = rsqrtf(dim)"),
        ("float scale = rsqrtf(dim)", "float scale = rsqrtf(tid)"),
        ("float scale = rsqrtf(dim)", "float scale = __bfloat162float(q[0])"),
        ("float sum = 0.0f", "float sum = 1.0f"),
        ("float sum = 0.0f;", "float sum = 0.0f; if (query == 3) return;"),
        ("total / partial[0]", "total / sum"),
        ("key = 0; key <= query", "key = 1; key <= query"),
        ('"q", "k", "v"', '"q", "k", "k"'),
        ('grid = ["seq", "heads"]', 'grid = ["dim", "heads"]'),
        ("#define BLOCK 128", "#define BLOCK 96"),
        ("__nv_bfloat16* v", "float* v"),
    ],
)
def test_what_is_no_attention_is_left_alone(task: Task, results: Results, old: str, new: str) -> None:
    source = task.starting_kernel.source
    assert old in source
    assert results(task, source.replace(old, new), RULE) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("!(key <= query)", "!(key < query)"),
        ("key0 + KEYS <= query0 + 1", "key0 + KEYS <= query0 + KEYS"),
        ("total[half] *= shrink;", ""),
        ("sums[d][2 * half + 1] *= shrink;", ""),
        ("__pipeline_wait_prior(0);", ""),
        ("            __syncthreads();\n            #pragma", "            #pragma"),
        ("key0 == 0 || dim > DIMS", "key0 == 0 && dim0 == 0"),
        ("out0 = blockIdx.z * DIMS", "out0 = 0"),
    ],
)
def test_a_planted_bug_is_found_out(
    task: Task, device: ModelDevice, results: Results, old: str, new: str
) -> None:
    text = results(task, task.starting_kernel.source, RULE)[0]
    assert old in text
    evaluation = device.evaluate(Kernel(text.replace(old, new)))
    passed = evaluation.ok and all(each.passed for each in device.final_check(Kernel(text.replace(old, new))))
    assert not passed
    assert evaluation.outcome in {Outcome.OK, Outcome.WRONG_RESULT, Outcome.RACE, Outcome.CRASH}
