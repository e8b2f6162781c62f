"""What is asked of a module before it becomes a task, by calling it on small inputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from mctskernel.core.task import TaskError

Called = Callable[..., Any]


def check_calls(
    model: Any, function: Called, tensors: Mapping[str, Any], state: Collection[str], name: str
) -> None:
    """Call a module's function twice. Raises TaskError if that differs, or leaves its inputs or the module changed.

    `state` are the tensors that are parameters or buffers of the module.
    """
    before = {each: tensor.clone() for each, tensor in tensors.items()}
    buffers = {each: tensor.clone() for each, tensor in model.named_buffers()}
    first = _called(function, list(tensors.values()), name, seed=1)
    for each, tensor in tensors.items():
        if not _same(tensor, before[each]):
            if each in state:
                raise TaskError(
                    f"{name} keeps something from call to call: its forward changes its '{each}'."
                )
            raise TaskError(
                f"The forward of {name} changes its input '{each}' in place; a task's inputs stay as they are."
            )
    second = _called(function, list(tensors.values()), name, seed=2)
    if first.shape != second.shape or not _same(first, second):
        changed = [each for each, tensor in model.named_buffers() if not _same(tensor, buffers[each])]
        raise TaskError(f"{name} gives another result when it is called again{_why(model, changed)}.")


def used_state(function: Called, tensors: Mapping[str, Any], state: Sequence[str]) -> set[str]:
    """The parameters and buffers that a result depends on, as far as gradients tell; the others can be left out."""
    given = {
        name: tensor.clone().requires_grad_(name in state and tensor.is_floating_point())
        for name, tensor in tensors.items()
    }
    leaves = {name: tensor for name, tensor in given.items() if tensor.requires_grad}
    try:
        with torch.enable_grad():
            result = function(*given.values())
            if not (isinstance(result, torch.Tensor) and result.requires_grad):
                return set(state)
            gradients = torch.autograd.grad(result.sum(), list(leaves.values()), allow_unused=True)
    except RuntimeError:
        return set(state)
    unused = {name for name, gradient in zip(leaves, gradients, strict=True) if gradient is None}
    return set(state) - unused


def modes_differ(trained: Called, evaluated: Called, tensors: Mapping[str, Any]) -> bool:
    """Whether a module's function gives something else in evaluation mode than in training mode."""
    try:
        with torch.no_grad():
            ours, theirs = (
                each(*(tensor.clone() for tensor in tensors.values())) for each in (trained, evaluated)
            )
    except RuntimeError:
        return True  # statistics of another size than these tensors have
    return not (
        ours.shape == theirs.shape and torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)
    )


def _called(function: Called, tensors: Sequence[Any], name: str, seed: int) -> Any:
    torch.manual_seed(seed)
    try:
        with torch.no_grad():
            return function(*tensors)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError, NotImplementedError) as error:
        said = str(error).strip().partition("\n")[0]
        raise TaskError(f"The forward of {name} raised {type(error).__name__}: {said}") from error


def _why(model: Any, changed: Sequence[str]) -> str:
    dropping = [
        (name or "it", each.p)
        for name, each in model.named_modules()
        if isinstance(each, torch.nn.modules.dropout._DropoutNd) and each.p > 0 and each.training
    ]
    if dropping:
        where, probability = dropping[0]
        return (
            f": '{where}' drops values at random (p = {probability:g}), since KernelBench's harness leaves modules in "
            "training mode, so no kernel can equal it"
        )
    if changed:
        return f": its buffer '{changed[0]}' changes from call to call"
    return " on the same inputs: it draws random numbers, or keeps something from call to call"


def _same(ours: Any, theirs: Any) -> bool:
    return bool(torch.equal(ours, theirs)) or (
        ours.is_floating_point() and bool(torch.allclose(ours, theirs, rtol=0, atol=0, equal_nan=True))
    )
