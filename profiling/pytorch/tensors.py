"""PyTorch's side of messages: values flattened into tensors, shared memory, and weights without constants."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from mctskernel.profiling.pytorch.protocol import (
    ELEMENT_BYTES,
    Constant,
    DictSpec,
    ListSpec,
    Structure,
    TensorSpec,
    places,
    tensor_specs,
)

Tensors = list[Any]

NOISE = 0.1

_KINDS = (torch.Tensor, torch.nn.Parameter)


class UnsupportedValueError(TypeError):
    """A value that can't be sent; the message says which."""


def flatten(value: Any) -> tuple[Structure, Tensors]:
    """A value's structure and its tensors in order. Raises UnsupportedValueError."""
    found: Tensors = []
    return _structure(value, found), found


def unflatten(structure: Structure, tensors: Sequence[Any]) -> Any:
    """The value that `flatten` flattened."""
    return _value(structure, iter(tensors))


def window_of(tensors: Sequence[Any]) -> int:
    """The descriptor of a new window with copies of tensors."""
    wanted = [spec_of(tensor) for tensor in tensors]
    descriptor = os.memfd_create("mctskernel-tensors")
    os.ftruncate(descriptor, places(wanted)[1])
    write(mapped(os.dup(descriptor)), wanted, tensors)
    return descriptor


def mapped(descriptor: int) -> Any:
    """A window's bytes, shared with other processes, every page of them present; closes the descriptor."""
    size = os.fstat(descriptor).st_size
    memory = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    os.close(descriptor)
    return torch.frombuffer(memory, dtype=torch.uint8)


def views(window: Any, wanted: Sequence[TensorSpec]) -> Tensors:
    """The tensors of a window of bytes, in place."""
    return [
        window[offset : offset + spec.nbytes].view(getattr(torch, spec.dtype)).view(spec.shape)
        for offset, spec in zip(places(wanted)[0], wanted, strict=True)
    ]


def write(window: Any, wanted: Sequence[TensorSpec], tensors: Sequence[Any]) -> None:
    """Copy tensors into a window. Raises UnsupportedValueError for one of another type or shape."""
    if len(wanted) != len(tensors):
        raise UnsupportedValueError(f"{len(tensors)} tensors, not {len(wanted)}")
    for view, spec, tensor in zip(views(window, wanted), wanted, tensors, strict=True):
        if spec_of(tensor) != spec:
            raise UnsupportedValueError(f"a tensor {spec_of(tensor)}, not {spec}")
        view.copy_(tensor)


def spec_of(tensor: Any) -> TensorSpec:
    """A tensor's type and shape. Raises UnsupportedValueError for a type that can't be sent."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in ELEMENT_BYTES:
        raise UnsupportedValueError(f"a tensor of {dtype}, which can't be compared here")
    return TensorSpec(dtype, tuple(tensor.shape))


def unpacked(structure: Structure, descriptor: int, device: str = "cpu") -> Any:
    """A value from its structure and the window of its tensors, as copies on a device; closes the descriptor."""
    wanted = list(tensor_specs(structure))
    return unflatten(structure, [view.clone().to(device) for view in views(mapped(descriptor), wanted)])


def _structure(value: Any, found: Tensors) -> Structure:
    if type(value) in _KINDS:
        found.append(value.detach())
        return spec_of(value)
    if value is None or isinstance(value, bool | int | float | str):
        return Constant(value)
    if isinstance(value, list | tuple):
        items = tuple(_structure(each, found) for each in value)
        return ListSpec("list" if isinstance(value, list) else "tuple", items)
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return DictSpec(tuple(value), tuple(_structure(each, found) for each in value.values()))
    raise UnsupportedValueError(f"a value of type {type(value).__name__}, which can't be compared here")


def _value(structure: Structure, tensors: Iterator[Any]) -> Any:
    match structure:
        case TensorSpec():
            return next(tensors)
        case Constant(value):
            return value
        case ListSpec(kind, items):
            values = [_value(item, tensors) for item in items]
            return values if kind == "list" else tuple(values)
        case DictSpec(keys, items):
            return {key: _value(item, tensors) for key, item in zip(keys, items, strict=True)}


@contextlib.contextmanager
def varied_initialisation() -> Iterator[None]:
    """While this lasts, parameters that modules would fill with a constant get noise from PyTorch's generator.

    Modules begin with biases of zero and scales of one, and a candidate that leaves them out would look right.
    """
    norm = torch.nn.modules.batchnorm._NormBase
    before = {name: getattr(torch.nn.init, name) for name in ("zeros_", "ones_", "constant_")}
    reset = norm.reset_running_stats
    for name, fill in before.items():
        setattr(torch.nn.init, name, _noisy(fill))
    norm.reset_running_stats = _noisy_statistics(reset)  # type: ignore[method-assign] # undone below
    try:
        yield
    finally:
        for name, fill in before.items():
            setattr(torch.nn.init, name, fill)
        norm.reset_running_stats = reset  # type: ignore[method-assign] # as it was


def vary_constants(model: Any) -> None:
    """Add noise to the floating-point parameters that are constant all the same."""
    with torch.no_grad():
        for parameter in model.parameters():
            constant = parameter.numel() and bool((parameter == parameter.flatten()[0]).all())
            if parameter.is_floating_point() and constant:
                add_noise(parameter)


def add_noise(tensor: Any) -> Any:
    """Noise of a tenth of each value, or of one where it is zero; no sign changes."""
    if not tensor.is_floating_point():
        return tensor
    with torch.no_grad():
        noise = torch.rand(tensor.shape, dtype=torch.float32, device="cpu").mul_(2).sub_(1).to(tensor)
        return tensor.add_(NOISE * noise * torch.where(tensor == 0, torch.ones_like(tensor), tensor.abs()))


def _noisy(fill: Callable[..., Any]) -> Callable[..., Any]:
    def filled(tensor: Any, *values: Any, **named: Any) -> Any:
        return add_noise(fill(tensor, *values, **named))

    return filled


def _noisy_statistics(reset: Callable[..., None]) -> Callable[..., None]:
    def filled(module: Any) -> None:
        reset(module)
        if module.track_running_stats:
            add_noise(module.running_mean)
            add_noise(module.running_var)

    return filled
