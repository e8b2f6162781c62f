"""Convolutions of float64 tensors on a GPU as matrix products, a tap at a time.

cuDNN's take minutes where these take a second. They are for references, whose tensors are large.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import torch
from torch._ops import OpOverload
from torch.nn.functional import pad
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

COPIED_BYTES = 1 << 28  # how much of the images is multiplied at a time


class Float64Convolutions(TorchDispatchMode):  # type: ignore[no-untyped-call] # PyTorch's has no types
    """Compute float64 convolutions on a GPU by `convolve`; modes entered before call `call_operator` themselves."""

    def __torch_dispatch__(
        self,
        func: OpOverload[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call an operator."""
        if _get_current_dispatch_mode() is not None:
            return func(*args, **(kwargs or {}))
        return call_operator(func, args, kwargs)


def call_operator(
    func: OpOverload[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
) -> Any:
    """Call an operator of PyTorch, or `convolve` in its place."""
    if func is torch.ops.aten.convolution.default and args[0].is_cuda and args[0].dtype is torch.float64:
        return convolve(*args)
    return func(*args, **(kwargs or {}))


def convolve(  # noqa: PLR0917 - as PyTorch calls its operator
    x: Any,
    weight: Any,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,  # noqa: FBT001
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """Convolve as `torch.ops.aten.convolution` does, over any number of axes."""
    kernel, sizes = weight.shape[2:], x.shape[2:]
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    if transposed:
        weight = weight.unflatten(0, (groups, -1)).transpose(1, 2)
        full = [(n - 1) * s + r + o for n, s, r, o in zip(sizes, stride, reach, output_padding, strict=True)]
        computed = sizes
    else:
        weight = weight.unflatten(0, (groups, -1))
        x = pad(x, [each for p in reversed(padding) for each in (p, p)])
        full = [(n - r) // s + 1 for n, s, r in zip(x.shape[2:], stride, reach, strict=True)]
        computed = torch.Size(full)
    result = x.new_zeros(x.shape[0], groups, weight.shape[1], *full)
    images = x.unflatten(1, (groups, -1))
    # Some images at a time, which bounds what is copied: each of them alone would be launches more than arithmetic.
    at_once = max(1, COPIED_BYTES // (x.element_size() * max(images[0].numel(), result[0].numel())))
    for image, into in zip(images.split(at_once), result.split(at_once), strict=True):
        for tap in product(*map(range, kernel)):
            window = [
                slice(t * d, t * d + s * (n - 1) + 1, s)
                for t, d, s, n in zip(tap, dilation, stride, computed, strict=True)
            ]
            taken = weight[(..., *tap)]
            if transposed:
                into[(..., *window)] += _multiplied(taken, image)
            else:
                into.add_(_multiplied(taken, image[(..., *window)]))
    result = result.flatten(1, 2)
    if transposed:
        cut = [slice(p, n - p) for p, n in zip(padding, full, strict=True)]
        result = result[(..., *cut)].contiguous()
    return result if bias is None else result + bias.view(-1, *[1] * len(kernel))


def _multiplied(weight: Any, image: Any) -> Any:
    """Matrices of each group times the pixels of images."""
    if weight.shape[-1] == 1:
        return weight.view(*weight.shape[:2], *[1] * (image.dim() - 3)) * image
    return (weight @ image.flatten(3)).unflatten(3, image.shape[3:])
