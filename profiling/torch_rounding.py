"""The roundings of a PyTorch reference's sums, in whatever order a kernel adds, and of its products in TF32.

A sum of n numbers that are added one after another is off by about a fifth of a rounding for each of them, at random:
by the square root of n in all, relative to the sum or, where terms cancel, to the root of the sum of their squares.
Where all of them are equal, roundings repeat, and n of them add up; where some are, as behind a clamp, those do.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from mctskernel.core.dtypes import is_floating
from mctskernel.core.task import Operator, Task
from mctskernel.profiling.float64_convolutions import call_operator

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
_ON_TENSOR_CORES = {
    _ATEN.mm: Operator.MATMUL,
    _ATEN.addmm: Operator.MATMUL,
    _ATEN.bmm: Operator.MATMUL,
    _ATEN.baddbmm: Operator.MATMUL,
    _ATEN.convolution: Operator.CONVOLUTION,
}
_SUMS = {_ATEN.sum, _ATEN.mean, _PRIMS.sum, _PRIMS.var, _ATEN.cumsum}
_NAMES = "erf erfc exp exp2 expm1 log log10 log1p log2 tanh sigmoid sin cos tan atan pow rsqrt sqrt lgamma"
_FUNCTIONS = {getattr(_ATEN, name) for name in _NAMES.split()}
_SHARE = 0.25


class RoundedSums(TorchDispatchMode):  # type: ignore[no-untyped-call] # PyTorch's has no types
    """Within this mode sums and products of floats are off by what adding one term after another may cost.

    So are results of functions, by a rounding: little may be left of them, as of 1 + erf(x).

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
            result = call_operator(func, args, kwargs)
            return self._rounded(packet, result, args) if result.is_floating_point() else result
        if packet in _FUNCTIONS:
            result = func(*args, **kwargs)
            return self._moved(result, self._unit * _SHARE * result.abs())
        if (parts := decomposition_table.get(func)) is not None:
            with self:
                result = parts(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return func(*args, **kwargs)

    def _rounded(self, packet: Any, result: Any, args: tuple[Any, ...]) -> Any:
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        repeated = 0.0 if packet in _PRODUCTS else _repeated(tensors[0])
        if packet is _ATEN.convolution:
            count = tensors[1].numel() // tensors[1].shape[0]
            terms = _size(result)
        elif packet in _PRODUCTS:
            count = tensors[-2].shape[-1]
            terms = _size(result)
        elif packet is _ATEN.cumsum:
            count = tensors[0].shape[args[1]] if tensors[0].dim() else 1
            terms = _size(tensors[0]) * math.sqrt(count)
        else:
            count = max(1, tensors[0].numel() // max(1, result.numel()))
            size = math.sqrt(count) if packet in {_ATEN.sum, _PRIMS.sum} else 1 / math.sqrt(count)
            terms = torch.zeros_like(result) if packet is _PRIMS.var else _size(tensors[0]) * size
        repeated = 1.0 if self._equal else repeated
        roundings = max(math.sqrt(count), repeated * min(count, self._most))
        return self._moved(result, self._unit * _SHARE * roundings * torch.maximum(result.abs(), terms))

    def _moved(self, result: Any, off: Any) -> Any:
        if self._seed is None:
            return result + off
        generator = torch.Generator(result.device).manual_seed(self._seed)
        signs = torch.randint(0, 2, result.shape, generator=generator, device=result.device)
        return result + off * (2 * signs - 1)


def _size(tensor: Any) -> Any:
    """The root of the mean square of what is finite: a NaN in one row says nothing of others."""
    return tensor.nan_to_num(0.0, 0.0, 0.0).square().mean().sqrt()


def _repeated(terms: Any) -> float:
    """The share of terms that are equal to their neighbour; zeros, which are added exactly, don't count."""
    if not terms.dim() or terms.shape[-1] < 2:
        return 0.0
    others = terms[..., 1:]
    return float(((others == terms[..., :-1]) & (others != 0)).double().mean())


_DROPPED_BITS = 52 - 10  # of the mantissa of a float64, behind those of TF32


class TF32Products(TorchDispatchMode):  # type: ignore[no-untyped-call] # PyTorch's has no types
    """Within this mode some operators multiply float64 tensors that are rounded to TF32, as tensor cores do.

    It says which of them were `found` to multiply float32.

    To the nearest number, or downwards where `seed` is 0, as without an instruction that rounds; or up or down by
    chance. Numbers of TF32 stay as they are. Depthwise convolutions are exact: PyTorch computes them without cuDNN.
    """

    def __init__(self, operators: Collection[Operator], seed: int | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # nor its constructor
        self._operators, self._seed = operators, seed
        self.found = set[Operator]()

    def __torch_dispatch__(
        self,
        func: OpOverload[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call an operator."""
        packet = func.overloadpacket
        operator = _ON_TENSOR_CORES.get(packet)
        if (
            operator is not None
            and operator in self._operators
            and not (packet is _ATEN.convolution and _is_depthwise(*args))
        ):
            first = 1 if packet in {_ATEN.addmm, _ATEN.baddbmm} else 0
            x, y = args[first : first + 2]
            if x.dtype == torch.float32:
                self.found.add(operator)
            elif x.dtype == torch.float64:
                args = (*args[:first], self._rounded(x), self._rounded(y), *args[first + 2 :])
        return call_operator(func, args, kwargs)

    def _rounded(self, x: Any) -> Any:
        if not self._seed:
            return _to_tf32(x, 0 if self._seed == 0 else 1 << (_DROPPED_BITS - 1))
        generator = torch.Generator(x.device).manual_seed(self._seed)
        return _to_tf32(
            x, torch.randint(0, 1 << _DROPPED_BITS, x.shape, generator=generator, device=x.device)
        )


def _is_depthwise(x: Any, *others: Any) -> bool:
    groups, transposed = others[-1], others[-3]
    return bool(groups == x.shape[1] > 1 and not transposed)


def _to_tf32(x: Any, added: Any) -> Any:
    return ((x.contiguous().view(torch.int64) + added) & -(1 << _DROPPED_BITS)).view(torch.float64)


MOST_TRIED = 16  # of a task's inputs, the first so many are tried; each costs a call of the reference
FAR = 2.0**20  # what moves numbers out of float16's range


@dataclass(frozen=True)
class TF32Inputs:
    """The inputs that a task multiplies in TF32 and uses for nothing else, so that rounding them changes nothing.

    `apart` are factors of two inputs, far from 1, with which the results keep their size: those of a product.
    """

    operands: frozenset[str] = frozenset()
    apart: Mapping[str, float] = field(default_factory=dict)


_FOUND: WeakKeyDictionary[Any, TF32Inputs] = WeakKeyDictionary()


def tf32_inputs(task: Task) -> TF32Inputs:
    """What is found by changing each input at the largest verify shape."""
    if task.reference not in _FOUND:
        shape = max(task.verify_shapes, key=task.compulsory_bytes)
        inputs = {
            name: array.astype(np.float64) * (1 + 2.0**-14) if is_floating(array.dtype) else array
            for name, array in task.draw_inputs(shape, 0).items()
        }

        def results(changed: Mapping[str, Any]) -> list[Any]:
            with np.errstate(all="ignore"), TF32Products(task.numerics.tf32, None):
                return list(task.expected({**inputs, **changed}, shape).values())

        def is_operand(name: str) -> bool:
            rounded = _to_tf32(torch.from_numpy(inputs[name]), 1 << (_DROPPED_BITS - 1)).numpy()
            return all(map(np.array_equal, truth, results({name: rounded})))

        def keeps_size(factors: Mapping[str, float]) -> bool:
            changed = results({name: inputs[name] * factor for name, factor in factors.items()})
            sizes = [np.abs(each).max(initial=0.0) for each in changed]
            wanted = [np.abs(each).max(initial=0.0) for each in truth]
            return all(one / 16 <= size <= 16 * one for one, size in zip(wanted, sizes, strict=True))

        truth = results({})
        first, *others = (name for name, each in inputs.items() if is_floating(each.dtype))
        operands = frozenset(name for name in (first, *others)[:MOST_TRIED] if is_operand(name))
        pairs = ({first: 1 / FAR, name: FAR} for name in others if name in operands)
        _FOUND[task.reference] = TF32Inputs(operands, next(filter(keeps_size, pairs), {}))
    return _FOUND[task.reference]
