"""How many numbers a function of PyTorch adds up for one of its results, also where an operator hides that it does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode


class LongestSums(NamedTuple):
    """The numbers in the longest sum of products, as of matrices or a convolution, and in the longest other one."""

    of_products: int
    of_numbers: int


class LongestReduction(TorchDispatchMode):  # type: ignore[no-untyped-call] # PyTorch's has no types
    """Finds in `longest` the longest sum of what is called meanwhile, products of matrices and convolutions aside.

    Operators are taken apart by PyTorch's own decompositions: a layer normalisation adds up what it normalises, a
    softmax its row. Meant for tensors without data (`meta`), for which that costs next to nothing.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # nor its constructor
        self.longest = 1

    def __torch_dispatch__(
        self,
        func: OpOverload[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Take an operator apart, or call it."""
        kwargs = kwargs or {}
        if func.overloadpacket in (torch.ops.prims.sum, torch.ops.prims.var):
            tensor, axes, *_ = args
            self.longest = max(
                self.longest, math.prod(tensor.shape[axis] for axis in axes or range(tensor.dim()))
            )
        elif (parts := decomposition_table.get(func)) is not None:
            with self:
                result = parts(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return func(*args, **kwargs)
