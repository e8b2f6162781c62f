"""The roundings of a PyTorch reference: of its sums, in whatever order a kernel adds, and of factors to TF32.

A sum of n numbers that are added one after another is off by about a fifth of a rounding for each of them, at random:
by the square root of n in all, relative to the sum or, where terms cancel, to the root of the sum of their squares.
Where all of them are equal, roundings repeat, and n of them add up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

_ATEN, _PRIMS = torch.ops.aten, torch.ops.prims
_PRODUCTS = {
    _ATEN.mm,
    _ATEN.addmm,
    _ATEN.bmm,
    _ATEN.baddbmm,
    _ATEN.mv,
    _ATEN.addmv,
    _ATEN.dot,
    _ATEN.convolution,
}
_SUMS = {_ATEN.sum, _ATEN.mean, _PRIMS.sum, _PRIMS.var, _ATEN.cumsum}
_SHARE = 0.25


class TF32Convolutions(TorchDispatchMode):  # type: ignore[no-untyped-call] # as below
    """Within this mode the factors of fp32 convolutions are rounded to TF32, as PyTorch does on GPUs by default."""

    def __torch_dispatch__(
        self,
        func: OpOverload[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call an operator."""
        if func.overloadpacket is _ATEN.convolution and args[0].dtype is torch.float32:
            args = (*map(_in_tf32, args[:2]), *args[2:])
        return func(*args, **(kwargs or {}))


def _in_tf32(tensor: torch.Tensor) -> torch.Tensor:
    """Numbers rounded to the nearest with 10 bits of mantissa; infinities and NaN stay."""
    bits = (tensor.contiguous().view(torch.int32) + (1 << 12)) & -(1 << 13)
    return torch.where(tensor.isfinite(), bits.view(torch.float32), tensor)


class RoundedSums(TorchDispatchMode):  # type: ignore[no-untyped-call] # PyTorch's has no types
    """Within this mode sums and products of floats are off by what adding one term after another may cost.

    `unit` is the rounding error of an addition. Signs follow from `seed`, without one all sums are too large.
    """

    def __init__(self, unit: float, seed: int | None, *, equal: bool, most: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # nor its constructor
        self._unit, self._seed, self._equal, self._most = unit, seed, equal, most

    def __torch_dispatch__(
        self,
        func: OpOverload[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Decompose an operator, or call it."""
        kwargs = kwargs or {}
        packet = func.overloadpacket
        if packet in _PRODUCTS or packet in _SUMS:
            result = func(*args, **kwargs)
            return self._rounded(packet, result, args) if result.is_floating_point() else result
        if (parts := decomposition_table.get(func)) is not None:
            with self:
                result = parts(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return func(*args, **kwargs)

    def _rounded(self, packet: Any, result: Any, args: tuple[Any, ...]) -> Any:
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        if packet is _ATEN.convolution:
            count = tensors[1].numel() // tensors[1].shape[0]
            terms = result.square().mean().sqrt()
        elif packet in _PRODUCTS:
            count = tensors[-2].shape[-1]
            terms = result.square().mean().sqrt()
        elif packet is _ATEN.cumsum:
            count = tensors[0].shape[args[1]] if tensors[0].dim() else 1
            terms = tensors[0].square().mean().sqrt() * math.sqrt(count)
        else:
            count = max(1, tensors[0].numel() // max(1, result.numel()))
            size = math.sqrt(count) if packet in {_ATEN.sum, _PRIMS.sum} else 1 / math.sqrt(count)
            terms = (
                torch.zeros_like(result) if packet is _PRIMS.var else tensors[0].square().mean().sqrt() * size
            )
        roundings = min(count, self._most) if self._equal else math.sqrt(count)
        off = self._unit * _SHARE * roundings * torch.maximum(result.abs(), terms)
        if self._seed is None:
            return result + off
        generator = torch.Generator(result.device).manual_seed(self._seed)
        signs = torch.randint(0, 2, result.shape, generator=generator, device=result.device)
        return result + off * (2 * signs - 1)
