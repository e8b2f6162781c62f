"""Tensor instructions of a warp: `mma.sync`, `wmma` and the matrix loads and stores; *PTX ISA*, "Matrix fragments".

Products are summed in double precision and rounded once, so results differ from hardware in the last bits.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from mctskernel.profiling.emulator.arithmetic import V
from mctskernel.profiling.emulator.codegen import Emitter, Handler
from mctskernel.profiling.emulator.floating import FLOAT8, bfloat_to_float
from mctskernel.profiling.emulator.lanes import WARP, Lanes
from mctskernel.profiling.emulator.ptx import Instruction, Operand, Vector

_MMA = re.compile(
    r"mma\.sync\.aligned\.m16n8k(?P<k>\d+)\.row\.col(?:\.satfinite)?"
    r"\.(?P<d>f16|f32|s32)\.(?P<a>f16|bf16|tf32|s8|u8|e4m3|e5m2)\.(?P<b>f16|bf16|tf32|s8|u8|e4m3|e5m2)"
    r"\.(?P<c>f16|f32|s32)$"
)
_DEPTHS = {
    "f16": (8, 16),
    "bf16": (8, 16),
    "tf32": (4, 8),
    **dict.fromkeys(("s8", "u8"), (16, 32)),
    **dict.fromkeys(("e4m3", "e5m2"), (32,)),
}
_MIXED = ({"s8", "u8"}, {"e4m3", "e5m2"})
_MATRIX = re.compile(
    r"(?:ld|st)matrix\.sync\.aligned\.m8n8\.x(?P<count>[124])(?P<trans>\.trans)?\.shared(?:::cta)?\.b16$"
)


def _elements(emitter: Emitter, operand: Operand | None) -> tuple[Operand | None, ...]:
    if not isinstance(operand, Vector):
        raise emitter.unsupported("operand")
    return operand.elements


def _whole_warps(emitter: Emitter) -> None:
    if emitter.instruction.guard is not None:
        raise emitter.unsupported("guard")
    emitter.emit("g.require_whole_warps()")


def _mma(emitter: Emitter, instruction: Instruction) -> None:
    match = _MMA.match(instruction.opcode)
    if not match or int(match["k"]) not in _DEPTHS[match["a"]]:
        raise emitter.unsupported()
    saturates = "satfinite" in instruction.opcode
    if saturates and match["d"] != "s32":
        raise emitter.unsupported()
    if match["a"] != match["b"] and not any({match["a"], match["b"]} <= kinds for kinds in _MIXED):
        raise emitter.unsupported()
    d, *sources = (_elements(emitter, o) for o in instruction.operands)
    _whole_warps(emitter)
    kinds = match.group("d", "a", "b", "c")
    lists = []
    for kind, source in zip((match["a"], match["b"], match["c"]), sources, strict=True):
        type_ = "f32" if kind == "f32" and source is sources[2] else "b32"
        lists.append("[" + ", ".join(_word(emitter, o, type_) for o in source) + "]")
    arguments = f"g, {int(match['k'])}, {kinds!r}, {', '.join(lists)}, saturates={saturates}"
    _assign(emitter, d, emitter.temporary(f"multiply_accumulate({arguments})"))


def _word(emitter: Emitter, operand: Operand | None, type_: str) -> str:
    return emitter.read(operand, "b32") if type_ == "b32" else f"{emitter.read(operand, 'f32')}.view(u4)"


def _load_matrix(emitter: Emitter, instruction: Instruction) -> None:
    match = _MATRIX.match(instruction.opcode)
    if not match:
        raise emitter.unsupported()
    count = int(match["count"])
    base, offset = emitter.address(instruction.operands[1])
    _whole_warps(emitter)
    access = emitter.access("load", "shared", "u4", count=4, offset=offset)
    mask = "None" if count == 4 else f"g.first_lanes({8 * count})"
    rows = emitter.temporary(f"m.load({access}, g, {base}, {mask})")
    if not emitter.accesses[-1].value_needed:
        return
    transposed = match["trans"] is not None
    result = emitter.temporary(f"distribute(spread(g, {rows}), {count}, transposed={transposed})")
    _assign(emitter, _elements(emitter, instruction.operands[0]), result)


def _store_matrix(emitter: Emitter, instruction: Instruction) -> None:
    match = _MATRIX.match(instruction.opcode)
    if not match:
        raise emitter.unsupported()
    count = int(match["count"])
    base, offset = emitter.address(instruction.operands[0])
    _whole_warps(emitter)
    access = emitter.access("store", "shared", "u4", count=4, offset=offset)
    words = "(None,)"
    if emitter.slice is None or emitter.through_memory:
        registers = ", ".join(emitter.read(o, "b32") for o in _elements(emitter, instruction.operands[1]))
        words = f"collect(g, [{registers}], transposed={match['trans'] is not None})"
    mask = "None" if count == 4 else f"g.first_lanes({8 * count})"
    emitter.emit(f"m.store({access}, g, {base}, {mask}, {words})")


_MEMORY = re.compile(
    r"wmma\.(?P<what>load\.[abc]|store\.d)\.sync\.aligned\.(?P<layout>row|col)\.m(?P<m>\d+)n(?P<n>\d+)k(?P<k>\d+)"
    r"(?:\.(?P<space>global|shared)(?:::cta)?)?\.(?P<type>f16|bf16|tf32|f32|s8|u8|s32)$"
)
_PRODUCT = re.compile(
    r"wmma\.mma\.sync\.aligned\.(?P<a>row|col)\.(?P<b>row|col)\.m(?P<m>\d+)n(?P<n>\d+)k(?P<k>\d+)\.(?P<types>[\w.]+)$"
)
_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "f32": 4, "s8": 1, "u8": 1, "s32": 4}


def _wmma(emitter: Emitter, instruction: Instruction) -> None:
    _whole_warps(emitter)
    if memory := _MEMORY.match(instruction.opcode):
        _move(emitter, instruction, memory)
    elif product := _PRODUCT.match(instruction.opcode):
        _multiply(emitter, instruction, product)
    else:
        raise emitter.unsupported()


def _move(emitter: Emitter, instruction: Instruction, match: re.Match[str]) -> None:
    store = match["what"] == "store.d"
    operands = list(instruction.operands)
    registers = _elements(emitter, operands.pop(1 if store else 0))
    extents = {"load.a": ("m", "k"), "load.b": ("k", "n")}.get(match["what"], ("m", "n"))
    rows, columns = (int(match[axis]) for axis in extents)
    by_rows, size = match["layout"] == "row", _BYTES[match["type"]]
    # A and B keep the order of memory, which the product gets as `by_rows`; accumulators are always by rows.
    across = not by_rows and extents == ("m", "n")
    length = columns if by_rows or across else rows
    number = rows * columns // 32
    vector = 1 if across else min(number, 16 // size)
    if len(registers) * 4 % (number * size):
        raise emitter.unsupported("fragment")
    base, offset = emitter.address(operands[0])
    tight = emitter.constant(columns if by_rows else rows, "u4")
    stride = emitter.read(operands[1], "u32") if len(operands) > 1 else tight
    shape = f"{length}, {number}, {vector}, {size}, across={across}"
    places = emitter.temporary(f"fragment_addresses(g, {base}, {stride}, {shape})")
    kind, space = "store" if store else "load", match["space"] or "generic"
    accesses = [
        emitter.access(kind, space, f"u{size}", count=vector, offset=offset) for _ in range(number // vector)
    ]
    if store:
        texts = ["(None,)"] * len(accesses)
        if emitter.through_memory or emitter.slice is None:
            values = emitter.temporary(
                f"fragment_elements(g, {_tuple(emitter, registers)}, {size}, {number})"
            )
            texts = [f"{values}[{vector * i}:{vector * (i + 1)}]" for i in range(len(accesses))]
        for i, (access, text) in enumerate(zip(accesses, texts, strict=True)):
            emitter.emit(f"m.store({access}, g, {places}[{i}], None, {text})")
        return
    found = [
        emitter.temporary(f"m.load({access}, g, {places}[{i}], None)") for i, access in enumerate(accesses)
    ]
    if emitter.accesses[-1].value_needed:
        packed = f"fragment_registers(g, ({', '.join(found)},), {len(registers)})"
        _assign(emitter, registers, emitter.temporary(packed))


def _multiply(emitter: Emitter, instruction: Instruction, match: re.Match[str]) -> None:
    if emitter.slice is not None and not emitter.slice.intersection(instruction.definitions):
        return
    types = match["types"].split(".")
    if len(types) == 2:  # those of D and C; A and B are f16
        types = [types[0], "f16", "f16", types[1]]
    if len(types) != 4 or any(t not in _BYTES for t in types):
        raise emitter.unsupported()
    targets, *sources = (_elements(emitter, o) for o in instruction.operands)
    lists = ", ".join(_tuple(emitter, registers) for registers in sources)
    shape = tuple(int(match[axis]) for axis in "mnk")
    by_rows = (match["a"] == "row", match["b"] == "row")
    product = f"multiply_fragments(g, {shape!r}, {tuple(types)!r}, {by_rows!r}, {lists})"
    _assign(emitter, targets, emitter.temporary(product))


def _tuple(emitter: Emitter, registers: tuple[Operand | None, ...]) -> str:
    return "(" + "".join(f"{emitter.read(r, 'b32')}, " for r in registers) + ")"


def _assign(emitter: Emitter, targets: tuple[Operand | None, ...], values: str) -> None:
    for i, target in enumerate(targets):
        emitter.assign(target, f"{values}[{i}]", "u4")


TENSOR: dict[str, Handler] = {"mma": _mma, "ldmatrix": _load_matrix, "stmatrix": _store_matrix, "wmma": _wmma}


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
