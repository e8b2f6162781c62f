"""PyTorch's side of structures: taking values apart into tensors, putting them together, and their windows."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from mctskernel.profiling.pytorch.structures import (
    ELEMENT_BYTES,
    Constant,
    Row,
    Slot,
    Structure,
    Table,
    places,
    slots,
)

Tensors = list[Any]

_KINDS = (torch.Tensor, torch.nn.Parameter)


class StructureError(TypeError):
    """A value that can't travel; the message says which."""


def take_apart(value: Any) -> tuple[Structure, Tensors]:
    """A value's structure and its tensors in order. Raises StructureError."""
    found: Tensors = []
    return _structure(value, found), found


def put_together(structure: Structure, tensors: Sequence[Any]) -> Any:
    """The value that `take_apart` took apart."""
    return _value(structure, iter(tensors))


def window_of(tensors: Sequence[Any]) -> int:
    """The descriptor of a new window that holds copies of tensors."""
    wanted = [slot_of(tensor) for tensor in tensors]
    descriptor = os.memfd_create("mctskernel-tensors")
    os.ftruncate(descriptor, places(wanted)[1])
    write(mapped(os.dup(descriptor)), wanted, tensors)
    return descriptor


def mapped(descriptor: int) -> Any:
    """A window's bytes, every page of them present, shared with whoever else holds it; closes the descriptor."""
    size = os.fstat(descriptor).st_size
    memory = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    os.close(descriptor)
    return torch.frombuffer(memory, dtype=torch.uint8)


def views(window: Any, wanted: Sequence[Slot]) -> Tensors:
    """The tensors of a window of bytes, in place."""
    return [
        window[offset : offset + slot.nbytes].view(getattr(torch, slot.dtype)).view(slot.shape)
        for offset, slot in zip(places(wanted)[0], wanted, strict=True)
    ]


def write(window: Any, wanted: Sequence[Slot], tensors: Sequence[Any]) -> None:
    """Copy tensors into a window. Raises StructureError for one of another type or shape."""
    if len(wanted) != len(tensors):
        raise StructureError(f"{len(tensors)} tensors, not {len(wanted)}")
    for view, slot, tensor in zip(views(window, wanted), wanted, tensors, strict=True):
        if slot_of(tensor) != slot:
            raise StructureError(f"a tensor {slot_of(tensor)}, not {slot}")
        view.copy_(tensor)


def slot_of(tensor: Any) -> Slot:
    """A tensor's type and shape. Raises StructureError for a type that can't travel."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in ELEMENT_BYTES:
        raise StructureError(f"a tensor of {dtype}, which can't be compared here")
    return Slot(dtype, tuple(tensor.shape))


def unpacked(structure: Structure, descriptor: int, device: str = "cpu") -> Any:
    """A value from its structure and the window of its tensors, as copies on a device; closes the descriptor."""
    wanted = list(slots(structure))
    tensors = [view.clone().to(device) for view in views(mapped(descriptor), wanted)]
    return put_together(structure, tensors)


def _structure(value: Any, found: Tensors) -> Structure:
    if type(value) in _KINDS:
        found.append(value.detach())
        return slot_of(value)
    if value is None or isinstance(value, bool | int | float | str):
        return Constant(value)
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return Row(kind, tuple(_structure(each, found) for each in value))  # type: ignore[arg-type]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return Table(tuple(value), tuple(_structure(each, found) for each in value.values()))
    raise StructureError(f"a value of type {type(value).__name__}, which can't be compared here")


def _value(structure: Structure, tensors: Iterator[Any]) -> Any:
    match structure:
        case Slot():
            return next(tensors)
        case Constant(value):
            return value
        case Row(kind, items):
            values = [_value(item, tensors) for item in items]
            return values if kind == "list" else tuple(values)
        case Table(keys, items):
            return {key: _value(item, tensors) for key, item in zip(keys, items, strict=True)}
