"""Kernels from the template for pools, against the functions themselves in 64-bit floats."""

import math
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="the extra `gpu` is not installed")

import torch.nn.functional as F  # noqa: N812 - as everybody calls it

from tests.problems.plain_cuda.verified import sources_of, tensor, wrong

pytestmark = pytest.mark.slow

LINE, IMAGE, VOLUME = tensor("x", "n 4 cols"), tensor("x", "n 4 h w"), tensor("x", "n 2 d h w")

SHAPE = {"n": 2, "h": 19, "w": 23, "d": 9, "cols": 301}

CASES: dict[str, tuple[Callable[..., Any], Any]] = {
    "largest of a line": (lambda x: F.max_pool1d(x, 8, 1, 4, 3), LINE),
    "largest of an image": (lambda x: F.max_pool2d(x, 3, 2, 1, 2), IMAGE),
    "largest of a volume": (lambda x: F.max_pool3d(x, 3, 2, 1, 3), VOLUME),
    "largest beside NaN": (lambda x: F.max_pool2d(x.masked_fill(x > 1, math.nan), 3, 1, 1, 2), IMAGE),
    "mean of a line": (lambda x: F.avg_pool1d(x, 4, 1, 2), LINE),
    "mean with padding": (lambda x: F.avg_pool2d(x, 3, 2, 1), IMAGE),
    "mean without padding": (
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        IMAGE,
    ),
    "mean of a volume that is computed": (lambda x: F.avg_pool3d(x.relu(), 2), VOLUME),
    "with what follows": (
        lambda x, b: (F.max_pool2d(x, 2) + b[:, None, None]).tanh() * 2,
        (IMAGE, tensor("b", "4")),
    ),
    "bfloat16": (lambda x: F.max_pool2d(x, 2), tensor("x", "n 4 h w", "bfloat16")),
}


@pytest.mark.parametrize("name", CASES)
def test_pools(name: str) -> None:
    function, given = CASES[name]
    inputs = given if isinstance(given, tuple) else (given,)
    source = sources_of(function, *inputs).templates
    assert source.count("__global__") == source.count("pool_kernel(") == 1
    assert not (found := wrong(function, *inputs, source=source, shape=SHAPE)), found
