"""Sums, means and average pools before products and convolutions: right at any size, and only where they are linear."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

from mctskernel.core.task import Tensor
from tests.problems.plain_cuda.verified import sources_of, tensor, wrong

pytestmark = pytest.mark.slow

X, W, B = tensor("x", "rows k"), tensor("f", "m k"), tensor("b", "m")
TOKENS = tensor("x", "n rows k")
LINE, IMAGE, VOLUME = tensor("x", "n k w"), tensor("x", "n k h w"), tensor("x", "2 3 d h w")


def kernel(taps: str, first: str = "m k") -> Tensor:
    return tensor("f", f"{first} {taps}")


def pooled_columns(x: Any, w: Any, b: Any) -> Any:
    return F.avg_pool1d(F.linear(x, w, b).unsqueeze(1), 2).squeeze(1).relu()


WEIGHTS, ROWS = "means of weights before the product", "means of rows before the product"
IMAGES, CHANNELS = "means of images before the convolution", "means of weights before the convolution"
POOL, POOL_1X1 = "average pooling before the convolution", "average pooling before the 1x1 convolution"

DIAGONAL = "the product with a diagonal matrix as a multiple"

MOVED: dict[str, tuple[str, Callable[..., Any], tuple[Tensor, ...]]] = {
    "sum of features": (WEIGHTS, lambda x, w: ((x @ w.T) / 2).sum(1, keepdim=True) * 1.5, (X, W)),
    "mean with vectors": (WEIGHTS, lambda x, w, b: (F.linear(x, w, b) * b - b).mean(-1), (X, W, B)),
    "sum with a divisor": (WEIGHTS, lambda x, w, b: (2 - (x @ w.T + 3) / b.exp()).sum(-1), (X, W, B)),
    "plain weights": (WEIGHTS, lambda x, w: (x @ w).sum(1), (X, tensor("f", "k m"))),
    "of tokens": (WEIGHTS, lambda x, w, b: (F.linear(x, w) * b).sum(-1), (TOKENS, W, B)),
    "batches": (WEIGHTS, lambda x, y: (x @ y).mean(2), (TOKENS, tensor("y", "n k m"))),
    "pool of features": (WEIGHTS, pooled_columns, (X, W, B)),
    "sum of rows": (ROWS, lambda x, w, b: F.linear(x, w, b).sum(0), (X, W, B)),
    "sum of everything": (WEIGHTS, lambda x, w, b: F.linear(x, w, b).sum(), (X, W, B)),
    "residual": (WEIGHTS, lambda x, w, b: (x @ w.T + x @ w.T + b).sum(1), (X, W, B)),
    "1x1 and pool": (
        POOL_1X1,
        lambda x, w, b: F.avg_pool2d(F.conv2d(x, w, b).sub(1), 2),
        (IMAGE, kernel("1 1"), B),
    ),
    "3x3 and pool": (
        POOL,
        lambda x, w, b: F.avg_pool2d(F.conv2d(x, w, b, padding=1, dilation=(1, 2)), (2, 3), (3, 2)).tanh(),
        (IMAGE, kernel("3 2"), B),
    ),
    "1d and pool": (POOL, lambda x, w: F.avg_pool1d(F.conv1d(x, w), 3), (LINE, kernel("2"))),
    "transposed and pool": (
        POOL,
        lambda x, w, b: F.avg_pool3d(F.conv_transpose3d(x, w, b, 2, 1) * 0.5, 2) + 1,
        (VOLUME, kernel("3 3 3", "3 m"), B),
    ),
    "transposed, dilated and pool": (
        POOL,
        lambda x, w: F.avg_pool2d(
            F.conv_transpose2d(x, w, None, (1, 2), 1, (0, 1), 1, (2, 1)), (2, 3), (3, 4)
        ),
        (IMAGE, kernel("2 4", "k m")),
    ),
    "all of an image": (
        IMAGES,
        lambda x, w, b: F.conv2d(x, w, b, padding=(2, 0), dilation=(2, 1)).mul(2).mean((2, 3), keepdim=True),
        (IMAGE, kernel("3 2"), B),
    ),
    "transposed": (
        IMAGES,
        lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, 1).sum((2, 3)),
        (IMAGE, kernel("3 3", "k m"), B),
    ),
    "depth": (
        IMAGES,
        lambda x, w, b: F.conv_transpose3d(x, w, b, padding=1).mean(2),
        (VOLUME, kernel("3 3 3", "3 m"), B),
    ),
    "groups": (
        IMAGES,
        lambda x, w: F.conv2d(x, w, groups=2).mean((2, 3)),
        (tensor("x", "n 4 h w"), tensor("f", "6 2 3 2")),
    ),
    "channels": (CHANNELS, lambda x, w, b: F.conv2d(x, w, b).sum(1).relu(), (IMAGE, kernel("3 3"), B)),
    "channels of images": (
        CHANNELS,
        lambda x, w, b: F.conv_transpose1d(x, w, b, 3).mean((0, 1, 2)),
        (LINE, kernel("2", "k m"), B),
    ),
    "diagonal rows": (DIAGONAL, lambda x, w, b: torch.diag(b) @ w, (X, W, B)),
    "diagonal columns": (DIAGONAL, lambda x, w, b: (x @ w.T) @ torch.diag(b), (X, W, B)),
}


@pytest.mark.parametrize("name", MOVED)
def test_reductions_before_products_give_the_same(name: str) -> None:
    title, function, inputs = MOVED[name]
    source = sources_of(function, *inputs).reordered
    assert source.startswith(f"/*\n# {title} (algebra")
    for shape in ({}, {"rows": 1, "n": 1, "k": 1, "m": 2}, {"h": 4, "w": 4, "d": 2, "k": 9, "m": 17}):
        assert not wrong(function, *inputs, source=source, shape=shape)


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x, w: (x @ w.T).relu().sum(1), (X, W)),
        (lambda x, w: (x @ w.T).amax(1), (X, W)),
        (lambda x, w: (y := x @ w.T) / y.sum(1, keepdim=True), (X, W)),
        (lambda x, w: F.avg_pool2d(F.conv2d(x, w), 3, padding=1), (IMAGE, kernel("1 1"))),
        (lambda x, w: F.conv2d(x, w, stride=2).mean((2, 3)), (IMAGE, kernel("3 3"))),
        (lambda x, w: F.conv2d(x, w).mean((2, 3)), (IMAGE, kernel("12 12"))),
        (lambda x: x.sum(1), (X,)),
        (lambda x, w: (x @ w.T).sum(1), (tensor("x", "rows k", "float16"), tensor("f", "m k", "float16"))),
    ],
)
def test_nothing_is_moved_where_it_is_not_linear_or_saves_nothing(
    function: Callable[..., Any], inputs: tuple[Tensor, ...]
) -> None:
    assert sources_of(function, *inputs).reordered == ""
