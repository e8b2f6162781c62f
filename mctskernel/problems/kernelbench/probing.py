"""Facts about a module that are found by calling it: whether it is a pure function, and how long its sums are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from mctskernel.core.launch_plan import MAX_LAUNCHES
from mctskernel.core.task import TaskError
from mctskernel.problems.problem import blamed

Called = Callable[..., Any]


def check_calls(
    model: Any, function: Called, tensors: Mapping[str, Any], state: Collection[str], name: str
) -> None:
    """Call a module's function twice. Raises TaskError if the results differ, or if it changes its inputs or itself.

    `state` are the tensors that are parameters or buffers of the module.
    """
    before = {each: tensor.clone() for each, tensor in tensors.items()}
    buffers = {each: tensor.clone() for each, tensor in model.named_buffers()}
    first = _called(function, list(tensors.values()), name, seed=1)
    for each, tensor in tensors.items():
        if not _same(tensor, before[each]):
            if each in state:
                raise TaskError(f"{name} keeps state from call to call: its forward changes its '{each}'.")
            raise TaskError(
                f"The forward of {name} changes its input '{each}' in place; a task's inputs must not change."
            )
    second = _called(function, list(tensors.values()), name, seed=2)
    if first.shape != second.shape or not _same(first, second):
        changed = [each for each, tensor in model.named_buffers() if not _same(tensor, buffers[each])]
        raise TaskError(f"{name} returns another result when it is called again{_why(model, changed)}.")


def check_operators(
    model: Any, function: Called, tensors: Mapping[str, Any], state: Collection[str], name: str
) -> None:
    """Like `check_calls`, from the operators that are called with `meta` tensors: for what is too large to be run."""
    recorded = Operators([*tensors.values(), *model.buffers()])
    with recorded:
        _called(function, list(tensors.values()), name, seed=1)
    if recorded.is_random:
        raise TaskError(f"{name} returns another result when it is called again{_why(model, ())}.")
    for each, tensor in (*tensors.items(), *model.named_buffers()):
        if id(tensor) in recorded.written:
            place = "input" if each in tensors and each not in state else "state"
            raise TaskError(
                f"The forward of {name} changes its {place} '{each}' in place; a task's inputs must not change."
            )


def used_state(function: Called, tensors: Mapping[str, Any], state: Collection[str]) -> set[str]:
    """The parameters, perhaps on `meta`, that the result depends on by gradients; others can be left out."""
    given = {
        name: tensor.detach().clone().requires_grad_(name in state and tensor.is_floating_point())
        for name, tensor in tensors.items()
    }
    leaves = {name: tensor for name, tensor in given.items() if tensor.requires_grad}
    try:
        with torch.enable_grad():
            result = function(*given.values())
            if not (isinstance(result, torch.Tensor) and result.requires_grad):
                return set(state)
            gradients = torch.autograd.grad(result.sum(), list(leaves.values()), allow_unused=True)
    except (RuntimeError, NotImplementedError):
        return set(state)
    unused = {name for name, gradient in zip(leaves, gradients, strict=True) if gradient is None}
    return set(state) - unused


def modes_differ(
    trained: Called, evaluated: Called, on_meta: Mapping[str, Any], tensors: Mapping[str, Any] | None
) -> bool:
    """Whether evaluation mode gives other results than training mode: if other operators run and `tensors` differ."""
    calls = []
    for function in (trained, evaluated):
        with Operators() as recorded, torch.no_grad():
            try:
                function(*on_meta.values())
            except RuntimeError:
                return True  # statistics of another size than these tensors
        calls.append(recorded.calls)
    if tensors is None or calls[0] == calls[1]:
        return bool(calls[0] != calls[1])
    with torch.no_grad():
        ours, theirs = (
            each(*(tensor.clone() for tensor in tensors.values())) for each in (trained, evaluated)
        )
    same = ours.shape == theirs.shape and torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)
    return not bool(same)


MOST_OPERATORS = 8 * MAX_LAUNCHES
"""A function that calls more needs too many kernels, and each look at it takes too long."""


class TooManyOperatorsError(TaskError):
    """A function that calls more than `MOST_OPERATORS`."""


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call] # PyTorch's has no types
    """Records the operators that are called, and which watched tensors they write to. Raises TooManyOperatorsError."""

    def __init__(self, watched: Sequence[Any] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # nor its constructor
        self.calls: list[tuple[str, ...]] = []
        self.is_random = False
        self.written: set[int] = set()
        self._watched = watched

    def __torch_dispatch__(
        self,
        func: OpOverload[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if len(self.calls) == MOST_OPERATORS:
            raise TooManyOperatorsError(
                f"Its forward calls more than {MOST_OPERATORS} operators, as recurrent networks do; a launch plan has "
                f"at most {MAX_LAUNCHES} kernels."
            )
        if func is torch.ops.aten.convolution.default:
            _check_convolution(*args)
        self.calls.append((str(func), *(repr(each) for each in args if not _holds_tensors(each))))
        self.is_random |= torch.Tag.nondeterministic_seeded in func.tags
        for place, described in enumerate(func._schema.arguments):
            if described.alias_info is not None and described.alias_info.is_write:
                changed = args[place] if place < len(args) else kwargs.get(described.name)
                self.written |= {id(each) for each in self._watched if _share_memory(each, changed)}
        return func(*args, **kwargs)


def _check_convolution(*called: Any) -> None:
    """Raise ValueError for what a convolution refuses, but not with meta tensors of every version of PyTorch."""
    x, weight, bias, _, padding, dilation, transposed, _, groups = called
    first, second, *window = weight.shape
    channels, results = (first, second * groups) if transposed else (second * groups, first)
    if x.shape[-weight.dim() + 1] != channels or (bias is not None and len(bias) != results):
        raise ValueError("A convolution's input or bias has another number of channels than its weights.")
    if first % groups:
        raise ValueError("A convolution's channels aren't a multiple of its groups.")
    sizes = zip(x.shape[-len(window) :], padding, dilation, window, strict=True)
    if not transposed and any(size + 2 * pad <= step * (taps - 1) for size, pad, step, taps in sizes):
        raise ValueError("A convolution's window is larger than its input.")


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or (
        isinstance(value, list | tuple) and any(isinstance(each, torch.Tensor) for each in value)
    )


def _share_memory(one: Any, other: Any) -> bool:
    return isinstance(other, torch.Tensor) and bool(
        one.untyped_storage()._cdata == other.untyped_storage()._cdata
    )


def _called(function: Called, tensors: Sequence[Any], name: str, seed: int) -> Any:
    torch.manual_seed(seed)
    with blamed(f"The forward of {name} raised"), torch.no_grad():
        return function(*tensors)


def _why(model: Any, changed: Sequence[str]) -> str:
    dropping = [
        (name or "it", each.p)
        for name, each in model.named_modules()
        if isinstance(each, torch.nn.modules.dropout._DropoutNd) and each.p > 0 and each.training
    ]
    if dropping:
        where, probability = dropping[0]
        return (
            f": '{where}' drops values at random (p = {probability:g}), because KernelBench's harness leaves modules "
            "in training mode, so no kernel can match it"
        )
    if changed:
        return f": its buffer '{changed[0]}' changes from call to call"
    return " on the same inputs: it draws random numbers, or keeps state from call to call"


def _same(ours: Any, theirs: Any) -> bool:
    return bool(torch.equal(ours, theirs)) or (
        ours.is_floating_point() and bool(torch.allclose(ours, theirs, rtol=0, atol=0, equal_nan=True))
    )
