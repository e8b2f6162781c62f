"""The text of plain kernels, and functions that are refused."""

import re
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="the extra `gpu` is not installed")

import sympy
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

from mctskernel.core.kernel import Kernel
from mctskernel.core.launch_plan import plan_of
from mctskernel.problems.plain_cuda import PlainCudaError
from mctskernel.problems.plain_cuda.extents import in_cpp
from tests.problems.plain_cuda.verified import SIZES, source_of, tensor

pytestmark = pytest.mark.slow

X = tensor("x", "rows cols")


def test_no_size_is_left_as_a_number() -> None:
    source = source_of(lambda x: (x / x.shape[1]).softmax(1) * x.shape[0] ** -0.5, X)
    assert not {str(SIZES[name]) for name in ("rows", "cols")} & set(re.findall(r"\d+", source))


def test_an_element_wise_chain_is_one_kernel() -> None:
    source = source_of(lambda x: F.gelu(x * 2 + 1), X)
    (launch,) = plan_of(Kernel(source)).launches
    assert launch.args == ("x", "out", "rows", "cols")
    assert "// aten.mul, aten.add, aten.gelu" in source


def test_names_that_mean_something_in_cpp_are_others_in_the_kernel() -> None:
    source = source_of(lambda x, y: x + y, tensor("float", "rows"), tensor("i", "rows"))
    assert "const float* float_2, const float* i, float* out" in source
    assert 'args = ["float", "i", "out", "rows"]' in source


def test_sizes_that_sympy_rounds_down_are_integer_divisions() -> None:
    channels = sympy.Symbol("channels", integer=True, positive=True)
    assert in_cpp(channels // 8) == "(channels / 8)"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: x + torch.rand_like(x), "draws random numbers, aten.rand_like"),
        (lambda x: F.dropout(x, 0.5, training=True), "draws random numbers"),
        (lambda x: torch.linalg.svd(x)[1], "no plain CUDA C\\+\\+ for the operator aten._linalg_svd"),
        (lambda x: x.add_(1), "changes its input 'x' in place"),
        (lambda x: x[x > 0], "selects elements by a boolean mask"),
        (lambda x: x * int(x.shape[0]), "fixes the dimension 'rows'"),
        (lambda x: x[0, 0] + HELD, "uses a constant tensor of 1270 elements"),
        (lambda x: 3, "must return a tensor"),
        (lambda x: x.to(torch.complex64).abs(), "complex64"),
    ],
)
def test_what_is_not_covered_is_a_sentence(function: Callable[..., Any], said: str) -> None:
    with pytest.raises(PlainCudaError, match=said):
        from mctskernel.problems.templates import kernel_sources  # noqa: PLC0415

        kernel_sources(function, [X], ["out"], {"rows": 61, "cols": 127})


HELD = torch.zeros(1270)
