"""Kernels from the template for attention, against the functions themselves in 64-bit floats."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

pytest.importorskip("torch", reason="the extra `gpu` is not installed")

import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor

from tests.problems.plain_cuda import verified
from tests.problems.plain_cuda.verified import sources_of, tensor, wrong

pytestmark = pytest.mark.slow

WIDE = {"n": 5, "rows": 521, "cols": 509, "k": 1031, "m": 1033, "h": 1}
"""Sizes that the template with two kernels is for."""

SHAPES = (
    {"n": 2, "rows": 5, "cols": 7, "k": 3, "m": 9},
    {"n": 1, "rows": 131, "cols": 70, "k": 40, "m": 12},
    {"n": 1, "rows": 1, "cols": 300, "k": 5, "m": 2},
)

Q, K, V = tensor("query", "n 2 rows k"), tensor("key", "n 2 cols k"), tensor("value", "n 2 cols m")


def by_hand(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
    return scores.masked_fill(mask[: q.shape[2], : k.shape[2]] == 0, -math.inf).softmax(-1) @ v


def of_one_projection(x: Tensor) -> Tensor:
    """As small language models have it: queries, keys and values side by side, and heads between rows."""
    n, rows, width = x.shape[0], x.shape[1], x.shape[2] // 3
    q, k, v = (each.view(n, rows, 2, width // 2).transpose(1, 2) for each in x.split(width, dim=2))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "attention": (F.scaled_dot_product_attention, (Q, K, V)),
    "causal": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), (Q, K, V)),
    "with a bias": (
        lambda q, k, v, b: F.scaled_dot_product_attention(q, k, v, attn_mask=b),
        (Q, K, V, tensor("b", "rows cols")),
    ),
    "by hand": (by_hand, (Q, K, V, tensor("mask", "rows cols", high=2, dtype="int32"))),
    "of large numbers": (lambda q, k, v: F.scaled_dot_product_attention(q * 100, k, v * 1000), (Q, K, V)),
    "of small numbers": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v * 1e-5), (Q, K, V)),
    "of shared heads": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        (tensor("query", "n 4 rows k"), K, V),
    ),
    "of one projection": (of_one_projection, (tensor("x", "n rows 768"),)),
}


@pytest.mark.parametrize("name", CASES)
def test_attention_in_two_kernels(name: str) -> None:
    function, inputs = CASES[name]
    source = _source(function, *inputs)
    assert "store_scores" in source
    for shape in SHAPES:
        assert not (found := wrong(function, *inputs, source=source, shape=shape)), f"{shape}: {found}"


def test_other_softmaxes_have_other_kernels() -> None:
    def of_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.transpose(-2, -1)).softmax(-2) @ v

    def also_weights(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        weights = (q @ k.transpose(-2, -1)).softmax(-1)
        return weights @ v, weights

    for function in (of_keys, also_weights):
        assert "store_scores" not in _source(function, Q, K, V)


def _source(function: Callable[..., Any], *inputs: Any) -> str:
    with patch.dict(verified.SIZES, WIDE):
        return sources_of(function, *inputs).templates
