"""A growing numpy vector, so that what selection reads of a tree is contiguous and never copied."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Vector:
    """Numbers of one dtype; `append` takes constant time, amortised, and ends the life of earlier views."""

    __slots__ = ("_length", "_storage")

    def __init__(self, dtype: str) -> None:
        self._storage = _empty(dtype)
        self._length = 0

    @classmethod
    def of(cls, numbers: Array) -> Vector:
        """A vector of these numbers, which it takes over."""
        made = cls(numbers.dtype.str)
        made._storage, made._length = numbers, len(numbers)
        return made

    def append(self, value: float) -> None:
        """Adds a number at the end."""
        if self._length == len(self._storage):
            grown = np.zeros(max(2 * self._length, 4), self._storage.dtype)
            grown[: self._length] = self._storage
            self._storage = grown
        self._storage[self._length] = value
        self._length += 1

    @property
    def view(self) -> Array:
        """The numbers; assigning to it changes them."""
        return self._storage[: self._length]

    @property
    def cells(self) -> memoryview:
        """The numbers one by one: several times faster than an array is at that. It lives as long as a view."""
        return self._storage.data

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._storage.item(index) if 0 <= index < self._length else self.view.item(index)

    def __setitem__(self, index: int, value: float) -> None:
        self.view[index] = value

    def __eq__(self, other: object) -> bool:
        """Whether the other vector holds the same bits."""
        return isinstance(other, Vector) and self.view.tobytes() == other.view.tobytes()

    __hash__ = None  # type: ignore[assignment]


@functools.cache
def _empty(dtype: str) -> Array:
    """One for all vectors, most of which stay empty: a leaf has no edges."""
    return np.zeros(0, dtype)
