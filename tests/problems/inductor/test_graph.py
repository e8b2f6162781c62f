"""Convolutions in the forms that Inductor has templates for."""

import pytest

pytest.importorskip("torch", reason="the extra `gpu` is not installed")

import torch

from mctskernel.core.task import Tensor
from mctskernel.problems.inductor.graph import traced


@pytest.mark.parametrize(
    ("rank", "settings"),
    [
        (1, {"stride": 2, "padding": 1, "dilation": 3}),
        (2, {"dilation": (1, 2), "groups": 2}),
        (1, {"transposed": True, "stride": 3, "padding": 2, "dilation": 2}),
        (2, {"transposed": True, "stride": (2, 3), "padding": 1, "output_padding": 1, "groups": 2}),
        (3, {"transposed": True, "dilation": 2, "padding": (0, 3, 5)}),
    ],
)
def test_convolutions_are_plain_ones(rank: int, settings: dict[str, object]) -> None:
    settings = dict(settings)
    kind = "conv_transpose" if settings.pop("transposed", False) else "conv"
    groups = settings.get("groups", 1)
    function = getattr(torch.nn.functional, f"{kind}{rank}d")
    weight = (4, 2, *[3] * rank) if kind == "conv_transpose" else (6, 4 // groups, *[3] * rank)
    inputs = (
        Tensor("x", "float32", ("n", 4, *[f"d{axis}" for axis in range(rank)])),
        Tensor("weight", "float32", weight),
        Tensor("bias", "float32", (2 * groups if kind == "conv_transpose" else 6,)),
    )
    sizes = {"n": 29, **{f"d{axis}": 19 + axis for axis in range(rank)}}
    graph = traced(lambda *tensors: function(*tensors, **settings), inputs, sizes)
    plain = [node.args for node in graph.graph.nodes if "convolution" in str(node.target)]
    assert len(plain) == 1
    tensors = [torch.randn(each.extents({"n": 2, "d0": 9, "d1": 8, "d2": 7})) for each in inputs]
    (found,) = graph(*tensors)
    torch.testing.assert_close(found, function(*tensors, **settings))


def test_constants_are_operators() -> None:
    graph = traced(
        lambda x: torch.minimum(x, torch.tensor(0.5)), (Tensor("x", "float32", ("n",)),), {"n": 29}
    )
    assert not dict(graph.named_buffers())
    assert [node.args for node in graph.graph.nodes if "full" in str(node.target)] == [([], 0.5)]
