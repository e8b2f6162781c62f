"""`wmma` instructions as generated text.

How a fragment's elements lie in the lanes' registers is left open by PTX, so that this layout is our own: the matrix
line by line, lane after lane, the same number of neighbours in each.
"""

from __future__ import annotations

import re

from mctskernel.profiling.emulator.codegen import Emitter, Handler
from mctskernel.profiling.emulator.ptx import Instruction, Operand, Vector

_MEMORY = re.compile(
    r"wmma\.(?P<what>load\.[abc]|store\.d)\.sync\.aligned\.(?P<layout>row|col)\.m(?P<m>\d+)n(?P<n>\d+)k(?P<k>\d+)"
    r"(?:\.(?P<space>global|shared)(?:::cta)?)?\.(?P<type>f16|bf16|tf32|f32|s8|u8|s32)$"
)
_PRODUCT = re.compile(
    r"wmma\.mma\.sync\.aligned\.(?P<a>row|col)\.(?P<b>row|col)\.m(?P<m>\d+)n(?P<n>\d+)k(?P<k>\d+)\.(?P<types>[\w.]+)$"
)
_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "f32": 4, "s8": 1, "u8": 1, "s32": 4}


def _wmma(emitter: Emitter, instruction: Instruction) -> None:
    if instruction.guard is not None:
        raise emitter.unsupported("guard")
    emitter.emit("g.require_whole_warps()")
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
    # A and B keep the order of memory, which the product is told; accumulators are by rows wherever they come from.
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


def _elements(emitter: Emitter, operand: Operand | None) -> tuple[Operand | None, ...]:
    if not isinstance(operand, Vector):
        raise emitter.unsupported("operand")
    return operand.elements


def _tuple(emitter: Emitter, registers: tuple[Operand | None, ...]) -> str:
    return "(" + "".join(f"{emitter.read(r, 'b32')}, " for r in registers) + ")"


def _assign(emitter: Emitter, targets: tuple[Operand | None, ...], values: str) -> None:
    for i, target in enumerate(targets):
        emitter.assign(target, f"{values}[{i}]", "u4")


WMMA: dict[str, Handler] = {"wmma": _wmma}
