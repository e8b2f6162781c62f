"""Element types: numpy's, and the floats that numpy borrows from ml_dtypes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

DType = np.dtype[Any]

_BORROWED: Mapping[str, DType] = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}


DTYPE_BYTES: Mapping[str, int] = {
    name: int(np.dtype(_BORROWED.get(name, name)).itemsize)
    for name in (
        *("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "float64", "bool"),
        *("int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"),
    )
}
"""Size in bytes of each element type that tensors and scratch buffers may have."""


CUDA_TYPES: Mapping[str, str] = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "__half": "float16",
    "nv_bfloat16": "bfloat16",
    "__nv_bfloat16": "bfloat16",
    "bool": "bool",
    "__nv_fp8_e4m3": "float8_e4m3fn",
    "__nv_fp8_e5m2": "float8_e5m2",
    "char": "int8",
    "signed char": "int8",
    "unsigned char": "uint8",
    "short": "int16",
    "int": "int32",
    "unsigned": "uint32",
    "unsigned int": "uint32",
    "long long": "int64",
    "unsigned long long": "uint64",
    **{f"{name}_t": name for name in ("int8", "uint8", "int16", "int32", "uint32", "int64", "uint64")},
}
"""The dtype of a C++ type."""


def check_dtype(name: str) -> None:
    """Raise ValueError for a name that isn't in `DTYPE_BYTES`."""
    if name not in DTYPE_BYTES:
        raise ValueError(f"dtype '{name[:80]}' is not one of {', '.join(DTYPE_BYTES)}")


def numpy_dtype(name: str) -> DType:
    """The numpy type of a name in `DTYPE_BYTES`."""
    return _BORROWED[name] if name in _BORROWED else np.dtype(name)


def is_floating(dtype: DType) -> bool:
    """Whether elements have a fraction; numpy itself doesn't count the borrowed ones among the floats."""
    return dtype.kind == "f" or dtype.name in _BORROWED


def is_number(dtype: DType) -> bool:
    """Whether elements are real numbers or truth values."""
    return dtype.kind in "biuf" or dtype.name in _BORROWED


def rounding_unit(dtype: DType) -> float:
    """The distance from 1 to the next larger number of a floating-point type."""
    return float(_limits(dtype).eps)


def largest_number(dtype: DType) -> float:
    return float(_limits(dtype).max)


def smallest_normal(dtype: DType) -> float:
    """The smallest positive number of a floating-point type that has all its digits."""
    return float(_limits(dtype).smallest_normal)


def smallest_denormal(dtype: DType) -> float:
    return float(_limits(dtype).smallest_subnormal)


def has_infinity(dtype: DType) -> bool:
    """Whether a floating-point type knows infinities; float8_e4m3fn doesn't."""
    return dtype.name != "float8_e4m3fn"


def arithmetic_dtype(dtype: DType) -> DType:
    """The precision in which a plain implementation computes: narrow floats are stored, not added up."""
    return np.dtype(np.float32) if is_floating(dtype) and dtype.itemsize <= 2 else dtype


def _limits(dtype: DType) -> Any:
    finfo: Any = ml_dtypes.finfo
    return finfo(dtype)
