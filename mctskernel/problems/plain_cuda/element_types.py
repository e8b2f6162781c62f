"""PyTorch's element types in C++: the storage type in memory, and the computation type in registers."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from mctskernel.problems.plain_cuda import PlainCudaError

_STORED: Mapping[torch.dtype, str] = {
    torch.float16: "__half",
    torch.bfloat16: "__nv_bfloat16",
    torch.float32: "float",
    torch.float64: "double",
    torch.bool: "bool",
    torch.float8_e4m3fn: "unsigned char",
    torch.float8_e5m2: "unsigned char",
    torch.uint8: "unsigned char",
    torch.int8: "signed char",
    torch.int16: "short",
    torch.int32: "int",
    torch.int64: "long long",
}

_NARROW: Mapping[torch.dtype, tuple[str, str, str]] = {
    torch.float16: ("__half2float({})", "__float2half({})", "cuda_fp16.h"),
    torch.bfloat16: ("__bfloat162float({})", "__float2bfloat16({})", "cuda_bf16.h"),
    torch.float8_e4m3fn: (
        "__half2float((__half)__nv_cvt_fp8_to_halfraw({}, __NV_E4M3))",
        "__nv_cvt_float_to_fp8({}, __NV_SATFINITE, __NV_E4M3)",
        "cuda_fp8.h",
    ),
    torch.float8_e5m2: (
        "__half2float((__half)__nv_cvt_fp8_to_halfraw({}, __NV_E5M2))",
        "__nv_cvt_float_to_fp8({}, __NV_NOSAT, __NV_E5M2)",
        "cuda_fp8.h",
    ),
}
"""The conversions of floats of 16 and 8 bits, and their header."""


def stored_type(dtype: torch.dtype) -> str:
    """The storage type. Raises PlainCudaError."""
    if dtype not in _STORED:
        name = str(dtype).removeprefix("torch.")
        raise PlainCudaError(f"This function uses {name}, which plain kernels don't support.")
    return _STORED[dtype]


def computed_type(dtype: torch.dtype) -> str:
    """The computation type: narrower floats are widened to float, small integers to int."""
    kept = stored_type(dtype)
    if dtype in _NARROW:
        return "float"
    return "int" if kept in {"short", "signed char", "unsigned char"} else kept


def is_fp8(dtype: torch.dtype) -> bool:
    """Whether a type is so narrow that values are rounded to it in registers, too."""
    return dtype in _NARROW and dtype.itemsize == 1


def header(dtype: torch.dtype) -> str:
    """The header of a type, or an empty text."""
    return _NARROW[dtype][2] if dtype in _NARROW else ""


def loaded(dtype: torch.dtype, place: str) -> str:
    """A loaded value in its computation type."""
    return _NARROW[dtype][0].format(place) if dtype in _NARROW else place


def stored(dtype: torch.dtype, value: str) -> str:
    """A value of the computation type as it is stored."""
    if dtype in _NARROW:
        return _NARROW[dtype][1].format(value)
    return f"({stored_type(dtype)})({value})" if computed_type(dtype) != stored_type(dtype) else value


def converted(value: str, have: torch.dtype, want: torch.dtype) -> str:
    """A value converted between the computation types of two element types."""
    before, after = computed_type(have), computed_type(want)
    if before == after:
        wraps = have != want and after == "int" and stored_type(want) != "int"
        return f"(int)({stored_type(want)})({value})" if wraps else value
    if after == "bool":
        return f"({value} != 0)"
    is_name = value.replace("_", "").isalnum()
    return f"({after}){value}" if is_name else f"({after})({value})"


def literal(value: float, dtype: torch.dtype) -> str:
    """A number as a C++ literal of the computation type."""
    kind = computed_type(dtype)
    if kind == "bool":
        return "true" if value else "false"
    if kind in {"int", "long long"}:
        return _whole(int(value), kind)
    suffix = "f" if kind == "float" else ""
    end = "_F" if kind == "float" else ""
    if math.isnan(value):
        return f"CUDART_NAN{end}"
    if math.isinf(value) or (kind == "float" and abs(value) > torch.finfo(torch.float32).max):
        return f"{'-' if value < 0 else ''}CUDART_INF{end}"
    return f"{float(value)!r}{suffix}"


def lowest(dtype: torch.dtype) -> float:
    if dtype == torch.bool:
        return 0
    return -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def highest(dtype: torch.dtype) -> float:
    if dtype == torch.bool:
        return 1
    return math.inf if dtype.is_floating_point else torch.iinfo(dtype).max


def _whole(value: int, kind: str) -> str:
    if value == torch.iinfo(torch.int64).min:
        return "(-9223372036854775807LL - 1)"
    if kind == "int" and value == torch.iinfo(torch.int32).min:
        return "(-2147483647 - 1)"
    return f"{value}LL" if kind == "long long" and abs(value) >= 1 << 31 else str(value)
