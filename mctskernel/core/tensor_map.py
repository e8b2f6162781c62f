"""Tensor maps, by which the Tensor Memory Accelerator (TMA) copies boxes of a tensor, and what it can't copy.

The limits are those of the CUDA driver API, cuTensorMapEncodeTiled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mctskernel.core.dtypes import DTYPE_BYTES

MAX_RANK = 5
MAX_EXTENT = 1 << 32
MAX_STRIDE_BYTES = 1 << 40
MAX_BOX = 256
MAX_ELEMENT_STRIDE = 8
ALIGNMENT = 16  # what strides and rows of boxes are multiples of, and what is copied at least, in bytes


@dataclass(frozen=True)
class ResolvedTensorMap:
    """A tensor map at one shape; extents, box and strides are in the order of the tensor's axes."""

    name: str
    tensor: str
    dtype: str
    extents: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle: int
    interleave: int
    fill: str
    tf32: bool = False
    optional: bool = False

    @property
    def strides(self) -> tuple[int, ...]:
        """How many bytes apart the elements of each axis are."""
        item = DTYPE_BYTES[self.dtype]
        return tuple(item * math.prod(self.extents[axis + 1 :]) for axis in range(len(self.extents)))

    @property
    def nbytes(self) -> int:
        return math.prod(self.extents) * DTYPE_BYTES[self.dtype]


def refused_by_tma(made: ResolvedTensorMap) -> str:
    """What of a tensor map the driver would refuse, as the end of a sentence; empty if nothing."""
    rank, lowest = len(made.extents), 3 if made.interleave else 1
    if not lowest <= rank <= MAX_RANK:
        return f"has {rank} axes, and TMA takes {lowest} to {MAX_RANK}: give it another shape"
    if min(made.extents) < 1 or max(made.extents) > MAX_EXTENT:
        return f"has the extents {made.extents}; each must be from 1 to 2^32"
    for name, axes in (("box", made.box), ("element_strides", made.element_strides)):
        if len(axes) != rank:
            return f"has {len(axes)} numbers as {name}, and {rank} axes"
    if made.nbytes < ALIGNMENT:
        return f"has {made.nbytes} bytes, and TMA copies at least {ALIGNMENT}, also what lies behind them"
    alignment = max(ALIGNMENT, made.interleave)
    for axis, stride in enumerate(made.strides[:-1]):
        if stride % alignment or stride >= MAX_STRIDE_BYTES:
            return (
                f"can't be: TMA can't read '{made.tensor}', whose elements in axis {axis} are {stride} bytes apart, "
                f"which is no multiple of {alignment}"
            )
    return _refused_box(made)


def _refused_box(made: ResolvedTensorMap) -> str:
    row = made.box[-1] * DTYPE_BYTES[made.dtype]
    strides = made.element_strides
    problems = (
        (
            not all(1 <= each <= MAX_BOX for each in made.box),
            f"has the box {made.box}; each extent must be from 1 to {MAX_BOX}",
        ),
        (
            strides[-1] != 1 or not all(1 <= each <= MAX_ELEMENT_STRIDE for each in strides),
            f"has the element strides {strides}; each must be from 1 to {MAX_ELEMENT_STRIDE}, and the last one 1",
        ),
        (
            made.interleave == 0 and row % ALIGNMENT != 0,
            f"has a box of {row} bytes in its last axis, which is no multiple of {ALIGNMENT}",
        ),
        (
            made.interleave == 0 and made.swizzle != 0 and row > made.swizzle,
            f"has a box of {row} bytes in its last axis, more than the {made.swizzle} of its swizzle",
        ),
        (
            made.interleave == 32 and made.swizzle != 32,
            "is interleaved in 32 bytes, which takes a swizzle of 32",
        ),
        (made.tf32 and made.dtype != "float32", f"rounds {made.dtype} to TF32; only float32 is"),
        (
            made.fill == "nan" and made.dtype not in ("float16", "bfloat16", "float32", "float64"),
            f"is filled with NaN, which {made.dtype} doesn't have",
        ),
    )
    return next((reason for wrong, reason in problems if wrong), "")
