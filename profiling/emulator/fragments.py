"""What `wmma` instructions compute on fragments whose elements lie line by line, lane after lane."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mctskernel.profiling.emulator.arithmetic import V
from mctskernel.profiling.emulator.lanes import WARP, Lanes
from mctskernel.profiling.emulator.tensor import register_values


def fragment_addresses(  # noqa: PLR0917
    g: Lanes, base: V, stride: V, length: int, number: int, vector: int, size: int, *, across: bool
) -> list[np.ndarray]:
    """Addresses of the accesses that fetch a lane's `number` elements, `vector` neighbours of `size` bytes at a time.

    A line has `length` elements; lines are `stride` elements apart in memory, or with `across` the elements of a line.
    """
    lane = g.slots % WARP
    places = []
    for start in range(0, number, vector):
        line, position = np.divmod(lane * number + start, length)
        line, position = (position, line) if across else (line, position)
        offset = (line * np.asarray(stride, np.int64) + position) * size
        places.append((base.astype(np.int64) + offset).astype(base.dtype))
    return places


def fragment_registers(g: Lanes, loaded: Sequence[V], registers: int) -> list[np.ndarray]:
    """Elements as loaded, packed; a fragment with more registers than elements holds them several times."""
    columns = [
        np.broadcast_to(row, g.n) for value in loaded for row in (value if np.ndim(value) > 1 else [value])
    ]
    words = np.stack(columns, axis=1).view(np.uint32)
    return [np.ascontiguousarray(words[:, i % words.shape[1]]) for i in range(registers)]


def fragment_elements(g: Lanes, registers: Sequence[V], size: int, number: int) -> tuple[np.ndarray, ...]:
    """The elements that the registers hold, as unsigned numbers."""
    words = np.stack([np.broadcast_to(r, g.n) for r in registers], axis=1)
    table = words.view(f"u{size}")
    return tuple(np.ascontiguousarray(table[:, i]) for i in range(number))


def multiply_fragments(
    g: Lanes,
    shape: tuple[int, int, int],
    types: tuple[str, str, str, str],
    by_rows: tuple[bool, bool],
    *fragments: Sequence[V],
) -> list[np.ndarray]:
    """`wmma.mma`: D = A B + C for (m, n, k), types of D, A, B and C; rounded once, from double precision."""
    m, n, k = shape
    left = _matrix(g, fragments[0], types[1], m, k, by_rows=by_rows[0])
    right = _matrix(g, fragments[1], types[2], k, n, by_rows=by_rows[1])
    total = left @ right + _matrix(g, fragments[2], types[3], m, n, by_rows=True)
    flat = np.ascontiguousarray(
        total.reshape(g.n, -1).astype({"f16": "f2", "f32": "f4", "s32": "i4"}[types[0]])
    )
    words = flat.view(np.uint32)
    return [np.ascontiguousarray(words[:, i]) for i in range(words.shape[1])]


def _matrix(
    g: Lanes, registers: Sequence[V], kind: str, rows: int, columns: int, *, by_rows: bool
) -> np.ndarray:
    """(warps, rows, columns) in double precision or int64."""
    held = register_values(g, registers, kind)[:, :, : rows * columns // WARP]
    lines, length = (rows, columns) if by_rows else (columns, rows)
    matrix = held.reshape(-1, lines, length)
    return matrix if by_rows else matrix.transpose(0, 2, 1)
