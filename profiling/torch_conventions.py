"""PyTorch's operations under another convention of maxima, minima and comparisons with a NaN.

What numpy's functions do for references in numpy: a reference in PyTorch, by whatever door, runs once under each
convention (`mctskernel.profiling.propagation`). Operations are seen where PyTorch dispatches them; what is made of
others is decomposed as the compiler does, and what can neither be followed nor decomposed says so.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

_OPPOSITE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}

_NAMES = """
    _adaptive_avg_pool2d _log_softmax _scaled_dot_product_attention_math _scaled_dot_product_flash_attention_for_cpu
    _softmax _to_copy _unsafe_view addbmm addmm addmv addr alias arange as_strided avg_pool1d avg_pool2d avg_pool3d
    baddbmm bmm broadcast_to cat clone constant_pad_nd convolution copy cumprod cumsum detach diagonal dot embedding
    empty empty_like empty_strided expand fill flip full full_like gather index index_add index_put index_select
    l1_loss lift_fresh lift_fresh_copy linalg_vector_norm logcumsumexp logsumexp masked_fill mean mm mse_loss mv
    native_batch_norm native_group_norm native_layer_norm new_empty new_full new_ones new_zeros nll_loss_forward norm
    one_hot ones ones_like permute prod repeat roll scalar_tensor scatter scatter_add select slice split
    split_with_sizes squeeze stack std std_mean sum t transpose tril triu unbind unfold unsqueeze var var_mean vdot
    view where zero zeros zeros_like
    abs acos acosh add addcdiv addcmul asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or bitwise_xor ceil
    cos cosh digamma div elu eq erf erfc erfinv exp exp2 expm1 floor floor_divide fmod frac gelu huber_loss hypot
    isfinite isinf isnan leaky_relu lerp lgamma log log10 log1p log2 log_sigmoid_forward logaddexp logaddexp2
    logical_and logical_not logical_or logical_xor mish mul ne neg pow reciprocal remainder round rsqrt rsub sigmoid
    silu sin sinc sinh smooth_l1_loss softplus sqrt square sub tan tanh trunc xlogy
"""

_ORDINARY = frozenset(_NAMES.split())
"""Operations without maxima, minima or comparisons that a NaN could meet differently, which needn't be decomposed."""


class Convention(Protocol):
    """Whether a NaN wins a maximum and a minimum, and whether comparisons with it are false."""

    keeps_maximum: bool
    keeps_minimum: bool
    compares: bool
    ordering: bool
    calls: int


def under_convention(convention: Convention) -> AbstractContextManager[Any]:
    """While it is entered, PyTorch computes under a convention and counts its operations in `calls`.

    `ordering` is set where results follow from an order, or can't be told. Nothing where PyTorch isn't imported.
    """
    return _mode(convention) if "torch" in sys.modules else nullcontext()


def _mode(convention: Convention) -> AbstractContextManager[Any]:
    from torch.utils._python_dispatch import TorchDispatchMode  # noqa: PLC0415 - imported already

    followed = _followed(convention)
    # Where the largest elements are: held, lest another tensor gets the same place in memory.
    places: list[Any] = []

    class Conventional(TorchDispatchMode):  # type: ignore[no-untyped-call] # PyTorch's own
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = kwargs or {}
            convention.calls += 1
            convention.ordering |= any(each is place for each in (*args, *given.values()) for place in places)
            called = func._schema.name.partition("::")[2]
            name = called.removesuffix("_")
            if name in followed and "out" not in given:
                found = followed[name](func, *args, **given)
                if isinstance(found, tuple):
                    places.append(found[1])
                return args[0].copy_(found) if called != name else found
            decomposition = _decompositions().get(func)
            if name not in _ORDINARY and decomposition is not None:
                with self:
                    return decomposition(*args, **given)
            convention.ordering |= name not in _ORDINARY and not func.is_view
            return func(*args, **given)

    mode: AbstractContextManager[Any] = Conventional()  # type: ignore[no-untyped-call] # likewise
    return mode


@functools.cache
def _decompositions() -> Mapping[Any, Callable[..., Any]]:
    from torch._decomp import core_aten_decompositions  # noqa: PLC0415 - as above

    found: Mapping[Any, Callable[..., Any]] = core_aten_decompositions()
    return found


def _followed(convention: Convention) -> Mapping[str, Callable[..., Any]]:  # noqa: C901 - one function for each
    """What takes the place of operations, by their names; it gets the operation, and its arguments."""
    import torch  # noqa: PLC0415 - as above

    def largest(one: Any, other: Any) -> Any:
        return _joined(torch.maximum if convention.keeps_maximum else torch.fmax, one, other)

    def smallest(one: Any, other: Any) -> Any:
        return _joined(torch.minimum if convention.keeps_minimum else torch.fmin, one, other)

    def clamp(_: Any, x: Any, low: Any = None, high: Any = None, **named: Any) -> Any:
        low, high = named.get("min", low), named.get("max", high)
        x = x if low is None else largest(x, low)
        return x if high is None else smallest(x, high)

    def reduced(func: Any, x: Any, *rest: Any, **named: Any) -> Any:
        keeps = convention.keeps_maximum if "max" in func._schema.name else convention.keeps_minimum
        if keeps or not x.is_floating_point():
            return func(x, *rest, **named)
        worst = float("-inf") if "max" in func._schema.name else float("inf")
        found = func(torch.where(torch.isnan(x), worst, x), *rest, **named)
        nothing = func(torch.where(torch.isnan(x), worst, -worst), *rest, **named)
        # Of NaN alone there is no largest.
        values, empty = (each[0] if isinstance(each, tuple) else each for each in (found, nothing))
        values = torch.where(empty == worst, float("nan"), values)
        return (values, *found[1:]) if isinstance(found, tuple) else values

    def either(func: Any, *arguments: Any, **named: Any) -> Any:
        if len(arguments) == 1 or isinstance(arguments[1], int | list | tuple) or named:
            return reduced(func, *arguments, **named)
        return (largest if "max" in func._schema.name else smallest)(*arguments)

    def compared(func: Any, one: Any, other: Any) -> Any:
        if convention.compares:
            return func(one, other)
        opposite = _OPPOSITE[func._schema.name.partition("::")[2].removesuffix("_")]
        return torch.logical_not(getattr(torch, opposite)(one, other))

    def hard_sigmoid(_: Any, x: Any) -> Any:
        return clamp(_, x + 3, 0, 6) / 6

    return {
        "hardtanh": lambda _, x, low=-1.0, high=1.0: clamp(_, x, low, high),
        "hardsigmoid": hard_sigmoid,
        "hardswish": lambda _, x: x * hard_sigmoid(_, x),
        "maximum": lambda _, one, other: largest(one, other),
        "minimum": lambda _, one, other: smallest(one, other),
        "relu": lambda _, x: largest(x, 0),
        "clamp": clamp,
        "clamp_min": lambda _, x, low: largest(x, low),
        "clamp_max": lambda _, x, high: smallest(x, high),
        "amax": reduced,
        "amin": reduced,
        "max": either,
        "min": either,
        **dict.fromkeys(_OPPOSITE, compared),
    }


def _joined(function: Callable[..., Any], one: Any, other: Any) -> Any:
    import torch  # noqa: PLC0415 - as above

    if not isinstance(other, torch.Tensor):
        other = torch.full_like(one, other)
    return function(one, other)
