"""Tensor maps of TMA, encoded by the driver for an address: a new one wherever a plan is bound to buffers."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from cuda.bindings import driver as cu

from mctskernel.core.tensor_map import ALIGNMENT, ResolvedTensorMap, refused_by_tma
from mctskernel.profiling.gpu.cuda_driver import CudaError, call
from mctskernel.profiling.ptx_text import TENSOR_MAP_BYTES

_TYPES: Mapping[str, str] = {
    "float16": "FLOAT16",
    "bfloat16": "BFLOAT16",
    "float32": "FLOAT32",
    "float64": "FLOAT64",
    "uint16": "UINT16",
    "int16": "UINT16",
    "uint32": "UINT32",
    "int32": "INT32",
    "uint64": "UINT64",
    "int64": "INT64",
}
"""Names of element types in CUtensorMapDataType; all others are bytes."""

_ALIGNMENT = 128
_CUDA_VERSION = 12000  # of the driver API: the first one that has tensor maps


def encoded(made: ResolvedTensorMap, address: int) -> bytes:
    """The CUtensorMap of a buffer at an address. Raises CudaError for one that the driver refuses.

    An optional one that can't be is zeros. The driver has the axes the other way round, the contiguous one first, and a
    stride for each but that one.
    """
    if made.optional:
        try:
            refused = refused_by_tma(made) or address % ALIGNMENT
            return bytes(TENSOR_MAP_BYTES) if refused else encoded(replace(made, optional=False), address)
        except CudaError:  # a GPU without TMA
            return bytes(TENSOR_MAP_BYTES)
    words, kind = TENSOR_MAP_BYTES // 8, "TFLOAT32" if made.tf32 else _TYPES.get(made.dtype, "UINT8")
    memory = (ctypes.c_uint64 * (words + _ALIGNMENT // 8))()
    start = -ctypes.addressof(memory) % _ALIGNMENT
    axes = range(len(made.extents))[::-1]
    call(
        _encode_tiled,
        ctypes.addressof(memory) + start,
        int(getattr(cu.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{kind}")),
        len(axes),
        address,
        _array(ctypes.c_uint64, [made.extents[axis] for axis in axes]),
        _array(ctypes.c_uint64, [made.strides[axis] for axis in axes[1:]]),
        _array(ctypes.c_uint32, [made.box[axis] for axis in axes]),
        _array(ctypes.c_uint32, [made.element_strides[axis] for axis in axes]),
        int(getattr(cu.CUtensorMapInterleave, f"CU_TENSOR_MAP_INTERLEAVE_{_bytes(made.interleave)}")),
        int(getattr(cu.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{_bytes(made.swizzle)}")),
        int(cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B),
        int(made.fill == "nan"),
    )
    return bytes(memory)[start : start + TENSOR_MAP_BYTES]


def _bytes(size: int) -> str:
    return f"{size}B" if size else "NONE"


def _array(kind: Any, values: Sequence[int]) -> Any:
    # Never empty: a map of one axis has no strides, and the driver wants a pointer.
    return (kind * max(1, len(values)))(*values)


def _encode_tiled(*arguments: Any) -> tuple[Any]:
    """Call cuTensorMapEncodeTiled with memory that is aligned as it must be, which the bindings' own isn't."""
    return (cu.CUresult(_function()(*arguments)),)


@cache
def _function() -> Any:
    address, _ = call(cu.cuGetProcAddress, b"cuTensorMapEncodeTiled", _CUDA_VERSION, 0)
    whole, pointer = ctypes.c_uint, ctypes.c_void_p
    kinds = (pointer, whole, whole, *(pointer,) * 5, *(whole,) * 4)
    return ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(int(address))
