"""Element types: numpy's, and bfloat16, which numpy borrows from ml_dtypes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

DType = np.dtype[Any]

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_BFLOAT16_EPSILON = 2.0**-7

DTYPE_BYTES: Mapping[str, int] = {
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
}
"""Size in bytes of each element type that tensors and scratch buffers may have."""


def numpy_dtype(name: str) -> DType:
    """The numpy type of a name in `DTYPE_BYTES`."""
    return _BFLOAT16 if name == "bfloat16" else np.dtype(name)


def is_floating(dtype: DType) -> bool:
    """Whether elements have a fraction; numpy itself doesn't count bfloat16 among the floats."""
    return dtype == _BFLOAT16 or dtype.kind == "f"


def is_number(dtype: DType) -> bool:
    """Whether elements are real numbers or truth values."""
    return dtype == _BFLOAT16 or dtype.kind in "biuf"


def rounding_unit(dtype: DType) -> float:
    """The distance from 1 to the next larger number of a floating-point type."""
    return _BFLOAT16_EPSILON if dtype == _BFLOAT16 else float(np.finfo(dtype).eps)


def arithmetic_dtype(dtype: DType) -> DType:
    """The precision in which a plain implementation computes: 16-bit floats are stored, not added up."""
    return np.dtype(np.float32) if is_floating(dtype) and dtype.itemsize == 2 else dtype
