"""Kernels from the template for attention, against the functions themselves in 64-bit floats."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest

pytest.importorskip("torch", reason="the extra `gpu` is not installed")

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor

from tests.problems.plain_cuda import verified
from tests.problems.plain_cuda.verified import sources_of, tensor, wrong

pytestmark = pytest.mark.slow

# Sizes of heads that the template with two kernels is for, and others.
WIDE = {"n": 5, "rows": 521, "cols": 509, "k": 1031, "m": 1033}
NARROW = {**WIDE, "k": 61, "m": 53}

SHAPES = ({"n": 2, "rows": 5, "cols": 7, "k": 8, "m": 12}, {"n": 1, "rows": 131, "cols": 70, "k": 5, "m": 4})

Q, K, V = tensor("query", "n 2 rows k"), tensor("key", "n 2 cols k"), tensor("value", "n 2 cols m")


def by_hand(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
    return scores.masked_fill(mask[: q.shape[2], : k.shape[2]] == 0, -math.inf).softmax(-1) @ v


def hidden(q: Tensor, k: Tensor, v: Tensor, hides: Callable[[Any, Any], Any]) -> Tensor:
    apart = torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None]
    return (q @ k.mT).masked_fill(hides(apart, k.shape[2] - q.shape[2]), -1e9).softmax(-1) @ v


def added(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT + torch.full((q.shape[2], k.shape[2]), -math.inf).triu(1)).softmax(-1) @ v


def of_one_projection(x: Tensor) -> Tensor:
    n, rows, width = x.shape[0], x.shape[1], x.shape[2] // 3
    q, k, v = (each.view(n, rows, 2, width // 2).transpose(1, 2) for each in x.split(width, dim=2))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


of_shared_heads = partial(F.scaled_dot_product_attention, enable_gqa=True)
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "attention": (F.scaled_dot_product_attention, (Q, K, V)),
    "causal": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), (Q, K, V)),
    "with a bias": (
        lambda q, k, v, b: F.scaled_dot_product_attention(q, k, v, attn_mask=b),
        (Q, K, V, tensor("b", "rows cols")),
    ),
    "by hand": (by_hand, (Q, K, V, tensor("mask", "rows cols", high=2, dtype="int32"))),
    "backwards": (lambda q, k, v: hidden(q, k, v, lambda d, _: d < 0), (Q, K, V)),
    "by a window": (lambda q, k, v: hidden(q, k, v, lambda d, _: (d > 0) | (d < -9)), (Q, K, V)),
    "to the last": (lambda q, k, v: hidden(q, k, v, lambda d, more: d > more), (Q, K, V)),
    "of shared heads": (of_shared_heads, (tensor("query", "n 4 rows k"), K, V)),
    "of one projection": (of_one_projection, (tensor("x", "n rows 192"),)),
    "of one query": (of_shared_heads, (tensor("query", "n 4 1 k"), K, V)),
    "without softmax": (lambda q, k, v: (q @ k.mT).relu() @ v, (Q, K, V)),
}


@pytest.mark.parametrize("name", CASES)
def test_attention_on_chip(name: str) -> None:
    function, inputs = CASES[name]
    _check(NARROW, "attend", function, *inputs)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_attention_of_16_bits(dtype: str) -> None:
    inputs = [tensor(each.name, " ".join(map(str, each.shape)), dtype) for each in (Q, K, V)]
    _check({**NARROW, "k": 75}, "attend", CASES["causal"][0], *inputs)
    _check({**NARROW, "n": 2, "rows": 3, "cols": 9999}, "attend", CASES["attention"][0], *inputs)


@pytest.mark.parametrize(("name", "rows"), [("causal", 521), ("by hand", 521), ("attention", 4)])
def test_attention_in_two_kernels(name: str, rows: int) -> None:
    function, inputs = CASES[name]
    _check({**WIDE, "rows": rows}, "compute_tiles", function, *inputs)


@pytest.mark.parametrize(("scale", "sizes"), [(1e3, NARROW), (1e-5, NARROW), (1e-5, WIDE)])
def test_numbers_that_pairs_cannot_hold_are_multiplied_in_fp32(scale: float, sizes: Any) -> None:
    def scaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q * 100, k, v * scale)

    _check(sizes, "attention::", scaled, Q, K, V)


def test_other_softmaxes_have_other_kernels() -> None:
    def also_weights(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        weights = (q @ k.mT).softmax(-1)
        return weights @ v, weights

    for function in (
        also_weights,
        lambda q, k, v: (q @ k.mT).softmax(-2) @ v,
        lambda q, k, v: (k @ q.mT).softmax(-1).mT @ v,
        lambda q, k, v: torch.cat((q @ k.mT, q[..., :1]), -1).softmax(-1)[..., :-1] @ v,
    ):
        assert "attention.cuh" not in _source(NARROW, function, Q, K, V)


@pytest.mark.parametrize("name", ["causal", "by a window", "by hand", "backwards", "to the last", "added"])
def test_only_a_triangle_that_inputs_cannot_change_is_skipped(name: str) -> None:
    function, inputs = CASES.get(name, (added, (Q, K, V)))
    skips = name in {"causal", "by a window", "added"}
    assert ("attend_pairs<HEAD, KEYS, true>" in _source(NARROW, function, *inputs)) is skips


def _check(sizes: Mapping[str, int], word: str, function: Callable[..., Any], *inputs: Any) -> None:
    source = _source(sizes, function, *inputs)
    assert word in source
    for shape in SHAPES:
        assert not (found := wrong(function, *inputs, source=source, shape=shape)), f"{shape}: {found}"


def _source(sizes: Mapping[str, int], function: Callable[..., Any], *inputs: Any) -> str:
    with patch.dict(verified.SIZES, sizes):
        return sources_of(function, *inputs).templates
