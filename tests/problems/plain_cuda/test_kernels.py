"""Plain kernels of many small functions, several a kernel file, against the functions themselves in 64-bit floats."""

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import pytest

pytest.importorskip("torch", reason="the extra `gpu` is not installed")

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor

from tests.problems.plain_cuda.verified import SIZES, source_of, tensor, wrong

pytestmark = pytest.mark.slow

TWO_LAYERS = False, 2, 0.0, False, False  # without biases and dropout
X = tensor("x", "rows cols")
IMAGE = tensor("x", "n 4 h w")


def together(*functions: Callable[..., Any]) -> Callable[..., Any]:
    """A function that returns the results of several."""

    def every(*tensors: Tensor) -> tuple[Tensor, ...]:
        found = [function(*tensors) for function in functions]
        return tuple(t for each in found for t in (each if isinstance(each, tuple) else (each,)))

    return every


def new_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


UNARY = together(
    lambda x: F.relu(x) - F.gelu(x),
    new_gelu,
    lambda x: F.gelu(x, approximate="tanh"),
    lambda x: F.mish(4 * F.silu(x)),
    lambda x: F.softplus(x) + F.hardswish(x),
    lambda x: x.clamp(-0.5, 0.5),
    lambda x: F.rrelu((x * x + 1).rsqrt() - 0.8),
    lambda x: torch.erfinv(torch.tanh(x)) + torch.i0(x),
    lambda x: torch.where(x > 0, x.sin(), x.abs().sqrt()),
    lambda x: torch.maximum(x, -x).floor().remainder(3.0),
    lambda x: x.to(torch.int32) // 2,
    lambda x: x.masked_fill(x > 0, -1.0) / math.sqrt(x.shape[-1]),
)

REDUCED = together(
    lambda x: x.sum(),
    lambda x: (x.amax(1), x.argmax()),
    lambda x: x.prod(1),
    lambda x: torch.var_mean(x, 1),
    lambda x: x.logsumexp(1),
    lambda x: ((x > 1).any(1), (x > -1).all(0)),
    lambda x: x.softmax(1),
    lambda x: x.flip(1).cumsum(1).flip(1),
    lambda x: x.cumprod(0),
    lambda x: x.topk(2, dim=0)[0] + x.kthvalue(2, 0)[0],
    lambda x: x.cummax(1),
    lambda x: x.cummin(0)[0] + x.logcumsumexp(1),
)

MOVED = together(
    lambda x: x.t() * 2,
    lambda x: torch.cat([x, x * 2, x[:1]], 0),
    lambda x: x[1:, -2:],
    lambda x: x[-1] + 1,
    lambda x: F.pad(x, (1, 2, 0, 1), value=3.0),
    lambda x: x.roll(2, 1),
    lambda x: x.tril() + x.triu(1) * 2,
    lambda x: x + torch.arange(x.shape[1]) + x.shape[0],
    lambda x: torch.kron(x.repeat(2, 3), x[0]),
    lambda x: x.unfold(1, 3, 2).sum(2),
    lambda x: x.reshape(-1, 1).expand(-1, 2).reshape(x.shape[1], -1) * 1,
    lambda x: x.clone().mul_(2)[:, ::2],
    lambda x: x + torch.tensor([1.0, 2.0, 3.0])[:, None].mul(2)[:1],
    lambda x: x.repeat(4, 6).view(x.shape[0], 4, 6, x.shape[1]).transpose(1, 2).flatten(0, 1).sum(1),
)

POOLED = together(
    lambda x: F.max_pool2d(x, 3, 2, 1),
    lambda x: F.max_pool2d(x, 2, dilation=2, return_indices=True),
    lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    lambda x: F.adaptive_avg_pool2d(x, (2, 3)),
    lambda x: F.adaptive_max_pool2d(x, 2),
    lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
)

NORMALISED = together(
    lambda x: F.group_norm(x, 2),
    lambda x: F.batch_norm(x, None, None, training=True),
    lambda x: x.permute(0, 2, 3, 1).flatten(1, 2).amax(1),
)

LOSSES = together(
    lambda x, y, t: F.huber_loss(x, y) + F.gaussian_nll_loss(x, y, x.exp()),
    lambda x, y, t: F.cosine_similarity(x, y)[:, None] + torch.cdist(x, y, 1.0),
    lambda x, y, t: F.cross_entropy(x, t) + torch.clamp(1 - x * y, min=0).mean(),
    lambda x, y, t: F.triplet_margin_loss(x, y, -x),
)

GATHERED = together(
    lambda x, i: x.gather(1, i),
    lambda x, i: x.index_select(1, i[0]),
    lambda x, i: x[:, i],
    lambda x, i: F.embedding(i, x.t()),
    lambda x, i: x.scatter_add(1, i, x[:, :2] + 0.0),
    lambda x, i: x.scatter(1, i[:, :1], 1.0),
    lambda x, i: x.scatter(1, i, x[:, 1:3] * 2),
    lambda x, i: x.scatter_reduce(1, i, x[:, :2] * 2, "amin", include_self=False),
    lambda x, i: x.scatter_reduce(1, i, x[:, :2] * 2, "mean"),
    lambda x, i: x.t().index_copy(0, i[:, 0], x[:, 0].outer(x[:, 1])),
    lambda x, i: x.t().index_put((i[:, 0],), x[:, 0], accumulate=True),
    lambda x, i: x.t().index_put((i[:, 0], i[:, 1] % 3), x[:, 1]),
    lambda x, i: x.t().index_add(0, i[:, 1], x[:, :1] * x[:, 0], alpha=2),
    lambda x, i: torch.take_along_dim(x, i[:1], 1),
    lambda x, i: F.one_hot(i, 5),
    lambda x, i: F.embedding_bag(i, x.t()) - F.embedding_bag(i, x.t(), mode="max"),
)

MULTIPLIED = together(
    lambda x, w, b: F.gelu(F.linear(x, w, b)),
    lambda x, w, b: torch.addmm(b, x, w.t(), beta=0.5, alpha=2),
    lambda x, w, b: torch.einsum("ik,jk->ij", x.softmax(1), w.relu()),
    lambda x, w, b: torch.diag(b) @ w,
    lambda x, w, b: F.bilinear(
        x, x + 1, w.reshape(1, w.shape[0], -1).transpose(1, 2) @ w.reshape(1, w.shape[0], -1)
    ),
)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "unary": (UNARY, (X,)),
    "reduced": (REDUCED, (X,)),
    "moved": (MOVED, (X,)),
    "pooled": (POOLED, (IMAGE,)),
    "normalised": (NORMALISED, (IMAGE,)),
    "losses": (LOSSES, (X, tensor("y", "rows cols"), tensor("t", "rows", "int64", 4))),
    "gathered": (GATHERED, (X, tensor("i", "rows 2", "int64", 4))),
    "multiplied": (MULTIPLIED, (X, tensor("w", "m cols"), tensor("b", "m"))),
    "attention": (attention, tuple(tensor(name, "n 2 m k") for name in ("query", "key", "value"))),
    "convolved": (
        together(
            lambda x, w, v: F.conv2d(x, w, stride=2, padding=1, groups=2),
            lambda x, w, v: F.conv_transpose2d(x, v, stride=2, padding=1, output_padding=1, dilation=2),
            lambda x, w, v: F.conv1d(x[:, :, 0], v[:, :, 0], padding=2),
        ),
        (IMAGE, tensor("a", "6 2 3 3"), tensor("b", "4 4 3 3")),
    ),
    "volumes": (
        lambda x, w: F.max_pool3d(F.conv3d(x, w, padding=1), 2),
        (tensor("x", "n 2 d h w"), tensor("a", "3 2 3 3 3")),
    ),
    "narrow": (
        together(
            lambda x, w: F.gelu(x + w),
            lambda x, w: F.layer_norm(x, (x.shape[1],), w),
            lambda x, w: (x @ x.t()).sum(1),
        ),
        (tensor("x", "rows cols", "bfloat16"), tensor("w", "cols", "bfloat16")),
    ),
    "recurrent": (
        together(
            lambda x, h, w, v, b: reduce(
                lambda h, t: torch.tanh(x[t] @ w[:5].t() + b[:5] + h @ v[:5].t()), range(5), h[0]
            ),
            lambda x, h, w, v, b: torch.lstm(x, (h, -h), (w, v, b, b) * 2, True, 1, 0.0, False, True, False),
            lambda x, h, w, v, b: torch.gru(x, h, (w[:15], v[:15], v[5:], v[:15]), *TWO_LAYERS, False),
            lambda x, h, w, v, b: torch.rnn_relu(
                x.transpose(0, 1), h, (w[:5], v[:5], v[5:10], v[-5:]), *TWO_LAYERS, True
            ),
        ),
        tuple(map(tensor, "xhwvb", ("5 rows 6", "2 rows 5", "20 6", "20 5", "20"))),
    ),
    "whole": (
        together(
            lambda a, b: a // (b + 1) - a % (b + 1) * 2, lambda a, b: a.sum(1), lambda a, b: (a > b) & (b > 1)
        ),
        (tensor("a", "rows cols", "int32", 50), tensor("b", "rows cols", "int32", 6)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_plain_kernel_computes_what_the_function_does(name: str) -> None:
    function, inputs = CASES[name]
    assert wrong(function, *inputs) == ""


@pytest.mark.parametrize("name", ["pooled", "gathered", "moved", "convolved"])
def test_indices_of_large_tensors_have_64_bits(name: str) -> None:
    function, inputs = CASES[name]
    source = source_of(function, *inputs, sizes=dict.fromkeys(SIZES, 1 << 16))
    assert "(long long)blockIdx.x" in source
    assert wrong(function, *inputs, source=source) == ""


def test_many_elements_are_reduced_in_parts() -> None:
    x = tensor("x", "n m")
    functions = together(lambda x: (x * 2).mean(), lambda x: x.amax(1))
    source = source_of(functions, x, sizes={"n": 3, "m": 65537})
    assert source.count("_parts[") >= 4
    assert wrong(functions, x, source=source, shape={"n": 3, "m": 7}) == ""


def test_products_whose_maximum_is_subtracted_are_rounded_alike_in_all_kernels() -> None:
    for function in (lambda x: (x * 0.3).softmax(1), lambda x: (x * 0.3 + 1).softmax(1)):
        products = [line for line in source_of(function, X).splitlines() if "0.3f" in line]
        assert len(products) > 1
        assert all("__fmul_rn(" in each for each in products), products
    assert "__fmul_rn" not in source_of(lambda x: (x * 0.3).exp(), X)


def test_equal_layers_share_a_kernel_and_memory() -> None:
    def layers(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(20):
            x = 2 * torch.tanh(x @ w)
        return x

    inputs = X, tensor("w", "cols cols")
    source = source_of(layers, *inputs)
    assert (source.count("__global__"), source.count("[[launch]]")) == (2, 40)
    assert source.count("[[scratch]]") < 4
    assert wrong(layers, *inputs, source=source) == ""
    steps = source_of(lambda x, w: reduce(lambda h, _: torch.tanh(h @ w), range(20), x), *inputs)
    assert (steps.count("[[launch]]"), "recurrent::run<" in steps) == (2, True)


def test_a_planted_fault_is_seen() -> None:
    source = source_of(lambda x: x.softmax(1), X)
    for before, after in (("k < cols", "k < cols - 1"), ("i / cols", "i / rows"), ("expf", "exp2f")):
        assert before in source
        assert wrong(lambda x: x.softmax(1), X, source=source.replace(before, after)) != ""
