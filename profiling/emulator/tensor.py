"""Tensor instructions of a warp: `mma.sync` and the matrix loads; fragment layouts: *PTX ISA*, "Matrix fragments".

Products are summed in double precision and rounded once, so results differ from hardware in the last bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mctskernel.profiling.emulator.arithmetic import V
from mctskernel.profiling.emulator.floating import FLOAT8, bfloat_to_float
from mctskernel.profiling.emulator.lanes import WARP, Lanes

_LANE = np.arange(WARP)
_GROUP, _MEMBER = _LANE >> 2, _LANE & 3
_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "s8": 8, "u8": 8, "e4m3": 8, "e5m2": 8}


def _fragment_a(k: int, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of each element of A by (lane, element): m16 x k."""
    per = 32 // bits
    registers = 16 * k * bits // (32 * 32)
    element = np.arange(registers * per)
    register, inside = element // per, element % per
    row = _GROUP[:, None] + 8 * (register % 2)
    column = _MEMBER[:, None] * per + inside + 4 * per * (register // 2)
    return row, column


def _fragment_b(k: int, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Row (k) and column (n) of each element of B by (lane, element): k x n8."""
    per = 32 // bits
    registers = 8 * k * bits // (32 * 32)
    element = np.arange(registers * per)
    register, inside = element // per, element % per
    row = _MEMBER[:, None] * per + inside + 4 * per * register
    return row, np.broadcast_to(_GROUP[:, None], row.shape)


def _fragment_c() -> tuple[np.ndarray, np.ndarray]:
    element = np.arange(4)
    return _GROUP[:, None] + 8 * (element // 2), _MEMBER[:, None] * 2 + element % 2


def register_values(g: Lanes, registers: Sequence[V], kind: str) -> np.ndarray:
    """(warps, 32, elements) in double precision, or int64."""
    table = np.stack([np.broadcast_to(r, g.n) for r in registers], axis=1)
    if kind == "f16":
        flat: np.ndarray = table.view(np.float16).astype(np.float64)
    elif kind == "bf16":
        flat = bfloat_to_float(table.view(np.uint16)).astype(np.float64)
    elif kind == "tf32":
        flat = (table & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    elif kind == "f32":
        flat = table.view(np.float32).astype(np.float64)
    elif kind in FLOAT8:
        flat = table.view(FLOAT8[kind]).astype(np.float64)
    else:
        flat = table.view({"s8": "i1", "u8": "u1", "s32": "i4"}[kind]).astype(np.int64)
    return flat.reshape(-1, WARP, flat.shape[1])


def multiply_accumulate(  # noqa: PLR0917
    g: Lanes,
    k: int,
    kinds: tuple[str, str, str, str],
    a: Sequence[V],
    b: Sequence[V],
    c: Sequence[V],
    *,
    saturates: bool = False,
) -> list[np.ndarray]:
    """`mma.sync.m16n8k*`: registers of D; `kinds` are the types of D, A, B and C; `saturates` of whole numbers."""
    to, kind_a, kind_b, kind_c = kinds
    fa, fb, fc = register_values(g, a, kind_a), register_values(g, b, kind_b), register_values(g, c, kind_c)
    warps = len(fa)
    left, right = np.zeros((warps, 16, k), fa.dtype), np.zeros((warps, k, 8), fb.dtype)
    row, column = _fragment_a(k, _BITS[kind_a])
    left[:, row, column] = fa
    row, column = _fragment_b(k, _BITS[kind_b])
    right[:, row, column] = fb
    row, column = _fragment_c()
    sums = (left @ right)[:, row, column] + fc
    flat = sums.reshape(g.n, 4)
    if to == "f16":
        halves = np.ascontiguousarray(flat.astype(np.float16)).view(np.uint32)
        return [np.ascontiguousarray(halves[:, i]) for i in range(2)]
    if saturates:
        flat = np.clip(flat, np.iinfo(np.int32).min, np.iinfo(np.int32).max)
    whole = flat.astype(np.float32).view(np.uint32) if to == "f32" else flat.astype(np.int32).view(np.uint32)
    return [np.ascontiguousarray(whole[:, i]) for i in range(4)]


def distribute(rows: np.ndarray, matrices: int, *, transposed: bool) -> list[np.ndarray]:
    """`ldmatrix`: from the 16-byte rows that the lanes' addresses name, (4, lanes), to one register a matrix."""
    table = np.ascontiguousarray(rows.T).view(np.uint16).reshape(-1, WARP, 8)
    found: list[np.ndarray] = []
    for m in range(matrices):
        matrix = table[:, 8 * m : 8 * m + 8, :]
        if transposed:
            matrix = matrix.transpose(0, 2, 1)
        pairs = np.ascontiguousarray(matrix).view(np.uint32)  # (warps, 8 rows, 4 pairs)
        found.append(np.ascontiguousarray(pairs[:, _GROUP, _MEMBER].reshape(-1)))
    return found


def collect(g: Lanes, registers: Sequence[V], *, transposed: bool) -> list[np.ndarray]:
    """`stmatrix`: the four words of the row that each lane's address names."""
    out = np.zeros((g.n // WARP, WARP, 8), np.uint16)
    for m, register in enumerate(registers):
        pairs = np.zeros((g.n // WARP, 8, 4), np.uint32)
        pairs[:, _GROUP, _MEMBER] = np.broadcast_to(register, g.n).reshape(-1, WARP)
        matrix = pairs.view(np.uint16)
        out[:, 8 * m : 8 * m + 8, :] = matrix.transpose(0, 2, 1) if transposed else matrix
    words = out.view(np.uint32).reshape(g.n, 4)
    return [np.ascontiguousarray(words[:, i]) for i in range(4)]


def spread(g: Lanes, rows: V) -> np.ndarray:
    """Rows by lane, also where all lanes named the same row."""
    return np.stack([np.broadcast_to(r, g.n) for r in rows])
