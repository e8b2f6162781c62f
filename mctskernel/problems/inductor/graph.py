"""A function as a graph of PyTorch's operators, in forms that Inductor generates kernels for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch._inductor.decomposition import select_decomp_table
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from mctskernel.core.task import Shape, Tensor
from mctskernel.problems.inductor.generated import InductorError
from mctskernel.problems.plain_cuda.tracing import symbolic_tensors, untraceable

aten = torch.ops.aten


def traced(function: Callable[..., Any], inputs: Sequence[Tensor], sizes: Shape) -> GraphModule:
    """Trace a function on fake CUDA tensors whose sizes are symbols. Raises InductorError and PlainCudaError.

    `sizes` should be unusual: a comparison of a size with a number of the function's own is taken to come out so.
    """

    def called(*tensors: torch.Tensor) -> Any:
        result = function(*tensors)
        given = result if isinstance(result, tuple | list) else (result,)
        return tuple(each.contiguous() for each in given)

    with untraceable():
        symbolic = symbolic_tensors(inputs, sizes, "cuda")
        decompositions = {**select_decomp_table(), aten.convolution.default: _convolution}
        decompositions |= {aten.avg_pool2d.default: _average, aten.avg_pool3d.default: _average}
        with symbolic.mode, sdpa_kernel(SDPBackend.MATH):
            graph = make_fx(torch.func.functionalize(called, remove="mutations"), decompositions)(
                *symbolic.tensors
            )
    _fill_constants(graph)
    return graph


def _fill_constants(graph: GraphModule) -> None:
    """Make each constant tensor of one element an operator, since further tensors can't be inputs."""
    for node in graph.graph.find_nodes(op="get_attr"):
        value = getattr(graph, node.target)
        if not isinstance(value, torch.Tensor) or value.numel() != 1:
            raise InductorError("This function uses a constant tensor that is no input.")
        with graph.graph.inserting_before(node):
            filled = graph.graph.call_function(
                aten.full.default,
                (list(value.shape), value.item()),
                {"dtype": value.dtype, "device": torch.device("cuda"), "pin_memory": False},
            )
        node.replace_all_uses_with(filled)
        graph.graph.erase_node(node)
    for name in dict(graph.named_buffers()):
        delattr(graph, name)
    graph.recompile()


def _convolution(x: Any, weight: Any, bias: Any, *settings: Any) -> Any:
    """A convolution as the one that Inductor has templates for: of two or three axes, without dilation.

    A transposed one convolves its input with zeros between the elements; dilation puts zeros into the weights.
    """
    stride, padding, dilation, transposed, output_padding, groups = settings
    rank = weight.dim() - 2
    if rank > 1 and not transposed and all(each == 1 for each in dilation):
        return NotImplemented
    if transposed:
        inner, outer, *window = weight.shape
        weight = weight.reshape(groups, inner // groups, outer, *window).transpose(1, 2)
        weight = weight.reshape(groups * outer, inner // groups, *window).flip(list(range(2, rank + 2)))
        before = [d * (w - 1) - p for d, w, p in zip(dilation, window, padding, strict=True)]
        after = [b + o for b, o in zip(before, output_padding, strict=True)]
        x = aten.constant_pad_nd(
            _spread(x, stride), [n for pair in zip(before[::-1], after[::-1], strict=True) for n in pair]
        )
        stride, padding = [1] * rank, [0] * rank
    weight = _spread(weight, dilation)
    lifted = rank == 1
    if lifted:
        x, weight, stride, padding, rank = x.unsqueeze(2), weight.unsqueeze(2), [1, *stride], [0, *padding], 2
    plain = {"dilation": [1] * rank, "transposed": False, "output_padding": [0] * rank, "groups": groups}
    found = aten.convolution(x, weight, None, stride, padding, **plain)
    found = found.squeeze(2) if lifted else found
    return found if bias is None else found + bias.reshape(-1, *[1] * (found.dim() - 2))


MOST_AVERAGED = 25
"""Numbers of a window; average pools of larger ones that overlap Inductor leaves to PyTorch."""


def _average(x: Any, window: Any, stride: Any = (), padding: Any = (0,), *others: Any) -> Any:
    """A large average pool as pools along fewer axes, one after another."""
    rank = len(window)
    size, step, pad = ([*each] * (rank // len(each)) for each in (window, stride or window, padding))
    ceil_mode, with_padding, divisor = list[Any](others) + [False, True, None][len(others) :]
    is_plain = not (ceil_mode or divisor) and (with_padding or not any(pad))
    if prod(size) <= MOST_AVERAGED or size == step or max(size[-2:]) == prod(size[-2:]) or not is_plain:
        return NotImplemented
    # Planes, or rows, and then the axis before.
    ones, noughts = [1] * (3 - rank), [0] * (3 - rank)
    inside = x.flatten(-4, -3) if rank == 3 else x
    inside = aten.avg_pool2d(inside, ones + size[1:], ones + step[1:], noughts + pad[1:])
    planes = inside.unflatten(-3, x.shape[-4:-2]).flatten(-2) if rank == 3 else inside
    found = aten.avg_pool2d(planes, [size[0], 1], [step[0], 1], [pad[0], 0])
    return found.unflatten(-1, inside.shape[-2:]) if rank == 3 else found


def _spread(tensor: Any, steps: Sequence[int]) -> Any:
    """Put zeros between the elements along the axes after the first two, so that they are `steps` apart."""
    for axis, step in enumerate(steps, 2):
        if step > 1:
            size = tensor.shape[axis]
            after = [0, 0] * (tensor.dim() - axis - 1) + [0, step - 1]  # of the new axis
            wide = aten.constant_pad_nd(tensor.unsqueeze(axis + 1), after)
            tensor = wide.flatten(axis, axis + 1).narrow(axis, 0, (size - 1) * step + 1)
    return tensor
