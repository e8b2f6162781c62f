"""Kernels from the template for rows, against the functions themselves in 64-bit floats."""

import math
import re
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="the extra `gpu` is not installed")

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor

from mctskernel.core.kernel import Kernel
from mctskernel.core.launch_plan import plan_of
from tests.problems.plain_cuda.verified import SIZES, sources_of, tensor, wrong

pytestmark = pytest.mark.slow

X = tensor("x", "rows cols")
IMAGE = tensor("x", "n 4 h w")

SHORT = SIZES
LONG = {"rows": 4093, "cols": 393209, "n": 1021, "h": 1021, "w": 1013}
FEW = {"rows": 3, "cols": 65537, "n": 3, "h": 1021, "w": 1031}

SHAPES = (
    {"rows": 3, "cols": 5},
    {"rows": 2, "cols": 2, "n": 1, "h": 1, "w": 2},
    {"rows": 7, "cols": 9001, "n": 2, "h": 67, "w": 69},
)


def replaced(x: Tensor, value: float) -> Tensor:
    return x.masked_fill(x > 1.0, value)


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "softmax": (lambda x: x.softmax(1), (X,)),
    "softmax of infinity": (lambda x: replaced(x, math.inf).softmax(1), (X,)),
    "softmax of -infinity": (lambda x: x.masked_fill(x > -0.3, -math.inf).softmax(1), (X,)),
    "logsumexp of NaN": (lambda x: replaced(x, math.nan).logsumexp(1), (X,)),
    "logsumexp of -infinity": (lambda x: x.masked_fill(x > -0.3, -math.inf).logsumexp(1), (X,)),
    "layer norm": (lambda x: F.layer_norm(x, x.shape[1:]), (IMAGE,)),
    "group norm": (lambda x: F.group_norm(x, 2), (IMAGE,)),
    "batch norm": (lambda x: F.batch_norm(x, None, None, training=True), (IMAGE,)),
    "softmax over channels": (lambda x, y: (x + y).softmax(1), (IMAGE, tensor("y", "n 4 h w"))),
    "RMS norm over channels": (lambda x: x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-5), (IMAGE,)),
    "columns": (lambda x: (x - x.mean(0)) * torch.rsqrt(x.var(0, correction=0) + 1e-5), (X,)),
    "smallest": (lambda x: replaced(x, math.nan).amin(1), (X,)),
    "Frobenius norm": (lambda x: x / torch.norm(x), (IMAGE,)),
    "cross entropy": (F.cross_entropy, (X, tensor("t", "rows", "int64", 1))),
    "triplet loss": (lambda x, y: F.triplet_margin_loss(x, y, -x), (X, tensor("y", "rows cols"))),
    "sums": (lambda x: x.cumsum(1) * 2, (IMAGE,)),
    "sums of those before": (lambda x: F.pad(x.cumsum(1), (1, 0))[:, :-1] + x, (X,)),
    "reverse sums": (lambda x: x.flip(1).cumsum(1).flip(1), (X,)),
    "reverse sums before": (lambda x: F.pad(x.flip(0).cumsum(0), (0, 0, 1, 0))[:-1].flip(0), (X,)),
    "products": (lambda x: x.abs().clamp(0.9, 1.1).cumprod(1), (X,)),
    "masked sums": (lambda x, m: (x * m).cumsum(1), (X, tensor("m", "rows cols", "bool", 1))),
    "rows of two tensors": (lambda x, y: torch.cat((x, y), 0).softmax(1), (X, tensor("y", "rows cols"))),
    "bias of columns": (lambda x, b: F.gelu(x + b), (X, tensor("b", "cols"))),
    "bias of channels": (lambda x, b: (x + b[:, None, None]).relu(), (IMAGE, tensor("b", "4"))),
    "bfloat16 chain": (F.silu, (tensor("x", "rows cols", "bfloat16"),)),
    "bfloat16": (
        lambda x, w: F.layer_norm(x, (x.shape[1],), w),
        (tensor("x", "rows cols", "bfloat16"), tensor("w", "cols", "bfloat16")),
    ),
    "place of the largest": (lambda x: x.round().argmax(1), (X,)),
    "place of NaN in columns": (lambda x: replaced(x, math.nan).argmin(0), (X,)),
    "whole numbers": (lambda x: x.sum(1), (tensor("x", "rows cols", "int32", 50),)),
    "moments for a pool": (lambda x: F.max_pool2d(F.group_norm(x, 2), (1, 2)), (IMAGE,)),
    "mean of a norm": (
        lambda x: F.batch_norm(x + 9, None, None, training=True).tanh().mean((1, 2, 3)),
        (IMAGE,),
    ),
    "GELU and softmax": (lambda x: F.gelu(x).softmax(1) * 2, (X,)),
    "exclusive sums": (lambda x: torch.cat((torch.zeros_like(x[:, :1]), x), 1).cumsum(1), (X,)),
    "norm of a norm": (
        lambda x: (y := x / x.square().mean(1, keepdim=True).sqrt()) / y.abs().mean((2, 3), keepdim=True),
        (IMAGE,),
    ),
}


@pytest.mark.parametrize("sizes", [SHORT, LONG, FEW], ids=["short", "long", "few"])
@pytest.mark.parametrize("name", CASES)
def test_rows_are_what_the_function_computes(name: str, sizes: dict[str, int]) -> None:
    function, inputs = CASES[name]
    source = sources_of(function, *inputs, sizes=sizes).templates
    for shape in SHAPES:
        assert wrong(function, *inputs, source=source, shape=shape) == ""


@pytest.mark.parametrize(
    ("name", "sizes", "launches"),
    [
        ("softmax", SHORT, 1),
        ("softmax", LONG, 1),
        ("softmax", FEW, 3),
        ("group norm", SHORT, 1),
        ("batch norm", FEW, 3),
        ("cross entropy", SHORT, 2),
        ("triplet loss", LONG, 2),
        ("norm of a norm", SHORT, 2),
    ],
)
def test_a_group_is_as_few_kernels_as_it_can_be(name: str, sizes: dict[str, int], launches: int) -> None:
    function, inputs = CASES[name]
    source = sources_of(function, *inputs, sizes=sizes).templates
    assert len(plan_of(Kernel(source)).launches) == launches


def test_a_row_that_fits_is_read_once() -> None:
    source = sources_of(
        lambda x: F.layer_norm(x, (x.shape[1],)), X, sizes={"rows": 4093, "cols": 4093}
    ).templates
    assert source.count("load(x_tile") == 3
    assert source.count("if (tile < tiles - 1) {") == source.count("if (tile > 0) {") == 1


def test_a_planted_fault_is_seen() -> None:
    function, inputs = CASES["softmax"]
    source = sources_of(function, *inputs, sizes={"rows": 307, "cols": 40009}).templates
    for before, after in (
        ("(unsigned)k < (unsigned)length", "k < length - 1"),
        ("merge_softmax(into.amax, into.sum, other.amax, other.sum);", "into.sum += other.sum;"),
        ("across<THREADS, ROWS>(of_row);", ""),
    ):
        assert before in source
        assert wrong(function, *inputs, source=source.replace(before, after), shape={"cols": 9001}) != ""


@pytest.mark.parametrize("name", ["softmax", "batch norm", "softmax over channels", "reverse sums"])
@pytest.mark.parametrize("sizes", [SHORT, FEW], ids=["short", "few"])
def test_macros_may_have_other_values(name: str, sizes: dict[str, int]) -> None:
    function, inputs = CASES[name]
    source = sources_of(function, *inputs, sizes=sizes).templates
    for values in (
        {"THREADS": 64, "ROWS": 2, "VECTOR": 8, "ITEMS": 1, "PARTS": 3, "COLUMNS": 32},
        {"THREADS": 4, "ROWS": 3, "VECTOR": 1, "ITEMS": 2, "PARTS": 1, "COLUMNS": 96},
    ):
        changed = source
        for macro, value in values.items():
            changed = re.sub(rf"#define {macro} \d+", f"#define {macro} {value}", changed)
        assert (
            wrong(function, *inputs, source=changed, shape={"rows": 5, "cols": 201, "h": 11, "w": 13}) == ""
        )


@pytest.mark.parametrize(
    "name", ["softmax", "group norm", "batch norm", "bfloat16", "two tensors", "place of NaN in columns"]
)
@pytest.mark.parametrize("values", [(64, 1, 3, 7, 4), (32, 2, 1, 2, 5)])
def test_long_rows_pass_through_a_ring(name: str, values: tuple[int, ...]) -> None:
    both = (lambda x, y: F.layer_norm(x + y, (x.shape[1],)), (X, tensor("y", "rows cols")))
    function, inputs = CASES.get(name, both)
    source = sources_of(function, *inputs, sizes=LONG | {"cols": 409609, "n": 3, "w": 1100}).templates
    assert len(re.findall("pass_(rows|columns)<", source)) == 1
    for macro, value in zip(("THREADS", "ITEMS", "PARTS", "BLOCKS", "STAGES"), values, strict=True):
        source = re.sub(rf"#define {macro} \d+", f"#define {macro} {value}", source)
    for shape in ({"rows": 3, "cols": 5, "n": 1, "h": 2}, {"rows": 11, "cols": 701, "n": 3, "h": 17}):
        assert wrong(function, *inputs, source=source, shape=shape) == ""
