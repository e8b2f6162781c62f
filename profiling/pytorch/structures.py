"""What a module takes and gives, told without PyTorch: tensors by type and shape, in lists, tuples and dictionaries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
import numpy as np

from mctskernel.core.dtypes import DTYPE_BYTES, DType, numpy_dtype
from mctskernel.core.task import Array

ALIGNMENT = 4096

ELEMENT_BYTES = {**DTYPE_BYTES, "bool": 1, "complex64": 8, "complex128": 16}
"""Size in bytes of each element type that tensors may have here."""


class Slot(msgspec.Struct, tag="tensor", frozen=True):
    """A tensor, whose elements travel apart."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """The size of its elements, densely packed."""
        return ELEMENT_BYTES[self.dtype] * int(np.prod(self.shape, dtype=np.int64))

    @property
    def numpy(self) -> DType:
        """The type of its elements."""
        return numpy_dtype(self.dtype)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class Constant(msgspec.Struct, tag="constant", frozen=True):
    """A value of plain Python."""

    value: bool | int | float | str | None

    def __str__(self) -> str:
        return repr(self.value)


class Row(msgspec.Struct, tag="row", frozen=True):
    """A list or a tuple."""

    kind: Literal["list", "tuple"]
    items: tuple[Structure, ...]

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(map(str, self.items))})"


class Table(msgspec.Struct, tag="table", frozen=True):
    """A dictionary with strings for keys, in its order."""

    keys: tuple[str, ...]
    items: tuple[Structure, ...]

    def __str__(self) -> str:
        return "{" + ", ".join(f"{k}: {v}" for k, v in zip(self.keys, self.items, strict=False)) + "}"


Structure = Slot | Constant | Row | Table


def slots(structure: Structure) -> Iterator[Slot]:
    """The tensors, in order."""
    if isinstance(structure, Slot):
        yield structure
    elif isinstance(structure, Row | Table):
        for item in structure.items:
            yield from slots(item)


def places(tensors: Sequence[Slot]) -> tuple[tuple[int, ...], int]:
    """Where in a window each tensor begins, and the size of the window, in bytes."""
    offsets, end = [], 0
    for tensor in tensors:
        offsets.append(end)
        end += -(-max(tensor.nbytes, 1) // ALIGNMENT) * ALIGNMENT
    return tuple(offsets), max(end, ALIGNMENT)


def arrays(window: Array, tensors: Sequence[Slot]) -> tuple[Array, ...]:
    """Views of the tensors in a window of bytes."""
    offsets, _ = places(tensors)
    return tuple(
        window[offset : offset + tensor.nbytes].view(tensor.numpy).reshape(tensor.shape)
        for offset, tensor in zip(offsets, tensors, strict=True)
    )
