"""How large an array a step of a reference would make, known before it makes it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mctskernel.core.reference_language import SIZED


def elements_made(name: str, arguments: Sequence[object]) -> int:
    """An upper bound of the elements that a function or operator makes of these arguments; 0 where they don't fit.

    The array that a method is called on is the first argument.
    """
    arrays = [value for value in arguments if isinstance(value, np.ndarray)]
    try:
        if name == "matmul":
            return _matmul(arrays)
        if name == "dot":
            return _dot(arrays)
        if name == "einsum":
            return _einsum(str(arguments[0]), arrays)
        if name in SIZED:
            return _sized(name, arguments)
        return math.prod(np.broadcast_shapes(*(array.shape for array in arrays)))
    except (ValueError, IndexError, KeyError, ZeroDivisionError):
        return 0  # As making it will tell.


def _sized(name: str, arguments: Sequence[object]) -> int:
    counts = [value for value in arguments if isinstance(value, np.ndarray) and value.dtype.kind in "iu"]
    if name == "bincount" and counts:
        return int(counts[0].max(initial=0)) + 1
    if name == "repeat" and counts[-1:]:
        return int(abs(counts[-1].astype(np.float64)).sum()) * _largest(arguments)
    return math.prod(_numbers(arguments))


def _largest(arguments: Sequence[object]) -> int:
    return max(value.size for value in arguments if isinstance(value, np.ndarray))


def _numbers(values: object) -> list[int]:
    """The whole numbers that are given, however they are nested, and the sizes of arrays; those below 1 count as 1."""
    if isinstance(values, list | tuple):
        return [size for each in values for size in _numbers(each)]
    if isinstance(values, np.ndarray):
        return [max(1, values.size)]
    if isinstance(values, int | float | np.integer | np.floating) and math.isfinite(values):
        return [max(1, abs(int(values)))]
    return []


def _matmul(arrays: Sequence[np.ndarray[tuple[int, ...], np.dtype[np.generic]]]) -> int:
    left, right = (array.shape for array in arrays)
    rows = left[-2] if len(left) > 1 else 1
    columns = right[-1] if len(right) > 1 else 1
    return math.prod(np.broadcast_shapes(left[:-2], right[:-2])) * rows * columns


def _dot(arrays: Sequence[np.ndarray[tuple[int, ...], np.dtype[np.generic]]]) -> int:
    left, right = arrays
    return left.size // left.shape[-1] * (right.size // right.shape[max(0, right.ndim - 2)])


def _einsum(text: str, arrays: Sequence[np.ndarray[tuple[int, ...], np.dtype[np.generic]]]) -> int:
    """Of `ij,jk->ik`; without an arrow, as if nothing were summed. There is no ellipsis."""
    terms, arrow, made = text.replace(" ", "").partition("->")
    extents: dict[str, int] = {}
    for term, array in zip(terms.split(","), arrays, strict=True):
        extents |= dict(zip(term, array.shape, strict=True))
    return math.prod(extents[label] for label in (made if arrow else extents))
