"""How `get_inputs` draws its tensors: recorded without allocating them, and repeated in other sizes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch

from mctskernel.core.expression import evaluate_int
from mctskernel.core.task import Shape, TaskError
from mctskernel.problems.one_device import OnDevice
from mctskernel.problems.problem import blamed

Sizes = tuple[int, ...]
Extents = tuple[int | str, ...]

_FACTORIES = {
    torch.rand: "uniform",
    torch.randn: "normal",
    torch.randint: "integers",
    torch.zeros: "",
    torch.ones: "",
    torch.empty: "",
    torch.full: "",
}
"""Functions that make tensors of a size, and their distributions."""

_LIKE = {torch.rand_like: "uniform", torch.randn_like: "normal"}

_KEEPING = "to float bool cuda cpu int long contiguous clone detach requires_grad_ "
_KEEPING += "view reshape transpose t permute unsqueeze squeeze"
_SAME_VALUES = {getattr(torch.Tensor, name) for name in _KEEPING.split()}
"""Functions whose result has the distribution of their argument."""

_DRAWN = "_mctskernel_drawn"

_SEEDED = threading.Lock()  # for PyTorch's generator, which threads share
_WITHOUT_VALUES = (RuntimeError, NotImplementedError, TypeError, ValueError)
"""What code may raise on `meta` tensors because they have no values."""


@dataclass(frozen=True)
class Drawn:
    """A distribution of a task and its range: integers from `low` to `high`, others below `high`."""

    distribution: str
    low: float = 0.0
    high: float = 1.0


@dataclass(frozen=True)
class Watched:
    """The result of a function, and the size of each tensor that it made, in order; `device` is where it ran."""

    function: Callable[[], Any]
    values: tuple[Any, ...]
    sizes: tuple[Sizes, ...]
    device: str

    def drawn(self, index: int) -> Drawn | None:
        """The distribution of a value; None where it is not a simple one."""
        return getattr(self.values[index], _DRAWN, None)


def watch(function: Callable[[], Any], most_bytes: int) -> Watched:
    """Call a function on `meta` tensors, or real ones if it needs values. Raises TaskError, also above `most_bytes`."""
    with blamed("get_inputs raised"):
        try:
            return _watched(function, _Watching("meta", most_bytes))
        except _WITHOUT_VALUES:
            return _watched(function, _Watching("cpu", most_bytes))


def drawn_again(
    function: Callable[[], Any], extents: Sequence[Extents], shape: Shape, seed: int, device: str = "cpu"
) -> tuple[Any, ...]:
    """Call a function whose tensors are made with these extents, in order, at a shape."""
    with _SEEDED, torch.no_grad(), torch.device(device), _Resizing(extents, shape, device):
        torch.manual_seed(seed)
        return tuple(function())


FEW_VALUES = 1 << 20  # how many of a large random weight's values are drawn


@contextmanager
def few_values() -> Iterator[None]:
    """Draw only the beginning of large CPU tensors in the block; the rest is zeros, and costs nothing."""

    def partial(fill: Callable[..., Any]) -> Callable[..., Any]:
        def filled(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if tensor.device.type != "cpu" or tensor.numel() < 4 * FEW_VALUES or not tensor.is_contiguous():
                return fill(tensor, *args, **kwargs)
            fill(tensor.detach().view(-1)[:FEW_VALUES], *args, **kwargs)
            return tensor

        return filled

    uniform, normal = partial(torch.Tensor.uniform_), partial(torch.Tensor.normal_)
    with patch.object(torch.Tensor, "uniform_", uniform), patch.object(torch.Tensor, "normal_", normal):
        yield


def _watched(function: Callable[[], Any], mode: _Watching) -> Watched:
    with torch.no_grad(), torch.device(mode.device), mode:
        values = function()
    if not isinstance(values, list | tuple):
        raise TaskError(f"get_inputs returns {type(values).__name__}; a list of arguments is needed.")
    return Watched(function, tuple(values), tuple(mode.sizes), mode.device)


class _Watching(OnDevice):
    """Records the tensors that are made, and their distributions."""

    def __init__(self, device: str, most_bytes: int) -> None:
        super().__init__(device)
        self.sizes: list[Sizes] = []
        self._left = most_bytes

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in _FACTORIES and self.device != "meta":
            with torch.device("meta"):
                made = function(*args, **{**kwargs, "device": "meta"})
            self._left -= made.numel() * made.element_size()
            if self._left < 0:
                raise TaskError("get_inputs makes more than fits into this machine's memory.")
        made = self.call(function, args, kwargs)
        if function in _FACTORIES:
            self.sizes.append(tuple(made.shape))
            _tag(made, _simple(_FACTORIES[function], args, kwargs))
        elif function in _LIKE:
            _tag(made, Drawn(_LIKE[function]))
        elif args and (known := getattr(args[0], _DRAWN, None)) is not None:
            _tag(made, known if function in _SAME_VALUES else _scaled(function, known, args[1:]))
        elif len(args) > 1 and (known := getattr(args[1], _DRAWN, None)) is not None:
            _tag(made, _scaled(function, known, args[:1]) if function in _COMMUTATIVE else None)
        return made


class _Resizing(OnDevice):
    """Makes tensors with the given extents in place of the requested ones."""

    def __init__(self, extents: Sequence[Extents], shape: Shape, device: str) -> None:
        super().__init__(device)
        self._sizes = iter([tuple(evaluate_int(e, shape) for e in each) for each in extents])

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in _FACTORIES:
            args, kwargs = _with_size(function, args, kwargs, next(self._sizes))
        return self.call(function, args, kwargs)


_COMMUTATIVE = {torch.Tensor.add, torch.Tensor.mul, torch.add, torch.mul}
_COMMUTATIVE |= {torch.Tensor.__radd__, torch.Tensor.__rmul__}
_FACTORS: Mapping[Any, Callable[[float, float], float]] = {
    **{each: lambda a, b: a + b for each in (torch.add, torch.Tensor.add, torch.Tensor.__radd__)},
    **{each: lambda a, b: a - b for each in (torch.sub, torch.Tensor.sub)},
    **{each: lambda a, b: a * b for each in (torch.mul, torch.Tensor.mul, torch.Tensor.__rmul__)},
    **{each: lambda a, b: a / b for each in (torch.div, torch.Tensor.div)},
}


def _scaled(function: Any, known: Drawn, others: tuple[Any, ...]) -> Drawn | None:
    """The distribution after a sum or product with a number; only uniform ones stay simple."""
    change = _FACTORS.get(function)
    if change is None or known.distribution != "uniform" or len(others) != 1:
        return None
    number = others[0]
    if isinstance(number, bool) or not isinstance(number, int | float):
        return None
    ends = sorted((change(known.low, number), change(known.high, number)))
    return Drawn("uniform", *ends)


def _simple(distribution: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Drawn | None:
    if distribution != "integers":
        return Drawn(distribution) if distribution else None
    numbers = [each for each in args if isinstance(each, int)]
    low, high = (kwargs.get("low", 0), kwargs.get("high"))
    if len(numbers) == 2:
        low, high = numbers
    elif len(numbers) == 1:
        low, high = (low, numbers[0]) if high is None else (numbers[0], high)
    return Drawn("integers", low, high - 1) if isinstance(high, int) else None


def _with_size(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], size: Sizes
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if "size" in kwargs:
        return args, {**kwargs, "size": size}
    if function is torch.randint or function is torch.full:
        place = next(i for i, each in enumerate(args) if isinstance(each, tuple | list))
        return (*args[:place], size, *args[place + 1 :]), kwargs
    if args and isinstance(args[0], tuple | list):
        return (size, *args[1:]), kwargs
    return size, kwargs


def _tag(made: Any, drawn: Drawn | None) -> None:
    if isinstance(made, torch.Tensor):
        setattr(made, _DRAWN, drawn)
