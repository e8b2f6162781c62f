"""How a function draws its tensors: watched without making them, and made again in other sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from mctskernel.core.expression import evaluate_int
from mctskernel.core.task import Shape, TaskError

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
"""Functions that make tensors of a size, and the distribution that they draw from."""

_LIKE = {torch.rand_like: "uniform", torch.randn_like: "normal"}

_SAME_VALUES = {
    torch.Tensor.to,
    torch.Tensor.float,
    torch.Tensor.bool,
    torch.Tensor.cuda,
    torch.Tensor.cpu,
    torch.Tensor.int,
    torch.Tensor.long,
    torch.Tensor.contiguous,
    torch.Tensor.clone,
    torch.Tensor.detach,
    torch.Tensor.requires_grad_,
    torch.Tensor.view,
    torch.Tensor.reshape,
    torch.Tensor.transpose,
    torch.Tensor.t,
    torch.Tensor.permute,
    torch.Tensor.unsqueeze,
    torch.Tensor.squeeze,
}
"""What these give has the distribution of what they are given."""

_DRAWN = "_mctskernel_drawn"


@dataclass(frozen=True)
class Drawn:
    """A distribution that a task can name, and its range: whole numbers with both ends, others up to `high`."""

    distribution: str
    low: float = 0.0
    high: float = 1.0


@dataclass(frozen=True)
class Watched:
    """What a function gave; `sizes` are those of each tensor that it made, in the order in which it did."""

    values: tuple[Any, ...]
    sizes: tuple[Sizes, ...]

    def drawn(self, index: int) -> Drawn | None:
        """The distribution of a value; None where no simple one is known."""
        return getattr(self.values[index], _DRAWN, None)


def watch(function: Callable[[], Any], most_bytes: int) -> Watched:
    """Call a function whose tensors hold nothing; really, if it looks at their values.

    Raises TaskError for one that fails, that gives no list, or that would make a tensor of more bytes than that.
    """
    try:
        return _watched(function, _Watching("meta", most_bytes))
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return _watched(function, _Watching("cpu", most_bytes))


def drawn_again(
    function: Callable[[], Any], extents: Sequence[Extents], shape: Shape, seed: int
) -> tuple[Any, ...]:
    """What a function gives whose tensors are made with these extents at a shape, in its order."""
    torch.manual_seed(seed)
    with torch.no_grad(), torch.device("cpu"), _Resizing(extents, shape):
        return tuple(function())


def _watched(function: Callable[[], Any], mode: _Watching) -> Watched:
    with _said_of("get_inputs"), torch.no_grad(), torch.device(mode.device), mode:
        values = function()
    if not isinstance(values, list | tuple):
        raise TaskError(f"get_inputs gives {type(values).__name__}, where a list of arguments is needed.")
    return Watched(tuple(values), tuple(mode.sizes))


@contextmanager
def _said_of(name: str) -> Iterator[None]:
    """What isn't known to come from values that aren't there is the function's own fault."""
    try:
        yield
    except (TaskError, RuntimeError, NotImplementedError, TypeError, ValueError):
        raise
    except (Exception, SystemExit) as error:
        raise TaskError(f"{name} raised {type(error).__name__}: {error}") from error


class _OnDevice(TorchFunctionMode):
    """While this is entered, every tensor is on one device, whichever is asked for."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def here(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function with this device in place of any other."""
        if function in {torch.Tensor.cuda, torch.Tensor.cpu}:
            return args[0]
        if "device" in kwargs:
            kwargs = {**kwargs, "device": self.device}
        if function is torch.Tensor.to:
            args = tuple(self.device if _is_device(each) else each for each in args)
        return function(*args, **kwargs)


class _Watching(_OnDevice):
    """Notes what is made, and how it is drawn."""

    def __init__(self, device: str, most_bytes: int) -> None:
        super().__init__(device)
        self.sizes: list[Sizes] = []
        self._left = most_bytes

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in _FACTORIES and self.device != "meta":
            with torch.device("meta"):
                self._spend(function(*args, **{**kwargs, "device": "meta"}))
        made = self.here(function, args, kwargs)
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

    def _spend(self, made: Any) -> None:
        self._left -= made.numel() * made.element_size()
        if self._left < 0:
            raise TaskError("get_inputs makes more than fits this machine's memory.")


class _Resizing(_OnDevice):
    """Makes tensors with other extents than it is asked for."""

    def __init__(self, extents: Sequence[Extents], shape: Shape) -> None:
        super().__init__("cpu")
        self._sizes = iter([tuple(evaluate_int(e, shape) for e in each) for each in extents])

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in _FACTORIES:
            args, kwargs = _with_size(function, args, kwargs, next(self._sizes))
        return self.here(function, args, kwargs)


_COMMUTATIVE = {torch.Tensor.add, torch.Tensor.mul, torch.add, torch.mul}
_COMMUTATIVE |= {torch.Tensor.__radd__, torch.Tensor.__rmul__}
_FACTORS: Mapping[Any, Callable[[float, float], float]] = {
    **{each: lambda a, b: a + b for each in (torch.add, torch.Tensor.add, torch.Tensor.__radd__)},
    **{each: lambda a, b: a - b for each in (torch.sub, torch.Tensor.sub)},
    **{each: lambda a, b: a * b for each in (torch.mul, torch.Tensor.mul, torch.Tensor.__rmul__)},
    **{each: lambda a, b: a / b for each in (torch.div, torch.Tensor.div)},
}


def _scaled(function: Any, known: Drawn, others: tuple[Any, ...]) -> Drawn | None:
    """The distribution after a sum or product with a number; only uniform ones have a name for it."""
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
    """The arguments of a factory with another size."""
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


def _is_device(value: Any) -> bool:
    return isinstance(value, torch.device) or (
        isinstance(value, str) and value.split(":")[0] in {"cuda", "cpu"}
    )
