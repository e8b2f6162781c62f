"""What memory holds that no kernel has written."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mctskernel.core.dtypes import numpy_dtype
from mctskernel.core.task import Array

_QUIET_NAN = {
    "float8_e4m3fn": 0xFF,
    "float8_e5m2": 0x7D,
    "float16": 0x7FCB,
    "bfloat16": 0x7FCB,
    "float32": 0x7FCBCBCB,
    "float64": 0x7FFCCBCB7FFCCBCB,
}
"""A quiet NaN of each type with a payload that arithmetic doesn't give; repeats in every 32-bit word.

8-bit floats have hardly a payload: of float8_e4m3fn's two NaNs it is the negative one, which no conversion gives.
"""


def poison(dtype: str, extents: tuple[int, ...]) -> Array:
    """An array that no kernel has written: a NaN with a payload of its own, or 0xCB in every byte."""
    kind = numpy_dtype(dtype)
    array = np.empty(extents, kind)
    array.view(f"u{kind.itemsize}")[...] = _pattern(kind)
    return array


def poison_word(dtype: str) -> int:
    """The 32-bit pattern that fills memory with poison of a type."""
    kind = numpy_dtype(dtype)
    pattern = _pattern(kind).to_bytes(kind.itemsize, "little")
    return int.from_bytes((pattern * 4)[:4], "little")


def is_poison(array: Array) -> npt.NDArray[np.bool_]:
    """Which elements hold what poison of their type does; every 203 of a uint8 does."""
    found: npt.NDArray[np.bool_] = np.asarray(as_bits(array) == _pattern(array.dtype))
    return found.reshape(array.shape)


def as_bits(array: Array) -> Array:
    """The elements as unsigned integers of their size."""
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def _pattern(dtype: np.dtype[np.generic]) -> int:
    return _QUIET_NAN.get(dtype.name, int.from_bytes(b"\xcb" * dtype.itemsize, "little"))
