"""`mma.sync`, `ldmatrix` and `stmatrix` as generated text."""

from __future__ import annotations

import re

from mctskernel.profiling.emulator.codegen import Emitter, Handler
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
    if match["c"] == "f16":
        kinds = (match["d"], match["a"], match["b"], "f16")
    else:
        kinds = (match["d"], match["a"], match["b"], match["c"])
    lists = []
    for kind, source in zip((match["a"], match["b"], match["c"]), sources, strict=True):
        type_ = "f32" if kind == "f32" and source is sources[2] else "b32"
        lists.append("[" + ", ".join(_word(emitter, o, type_) for o in source) + "]")
    arguments = f"g, {int(match['k'])}, {kinds!r}, {', '.join(lists)}, saturates={saturates}"
    result = emitter.temporary(f"multiply_accumulate({arguments})")
    for i, target in enumerate(d):
        emitter.assign(target, f"{result}[{i}]", "u4")


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
    for i, target in enumerate(_elements(emitter, instruction.operands[0])):
        emitter.assign(target, f"{result}[{i}]", "u4")


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


TENSOR: dict[str, Handler] = {"mma": _mma, "ldmatrix": _load_matrix, "stmatrix": _store_matrix}
