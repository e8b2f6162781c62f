"""`cvt`, `cvta` and `isspacep` as generated text."""

from __future__ import annotations

import re

from mctskernel.profiling.emulator.codegen import Emitter, Handler
from mctskernel.profiling.emulator.opcodes_float import (
    clamped,
    finish,
    flushed,
    narrowed,
    working,
    working_dtype,
)
from mctskernel.profiling.emulator.ptx import SIZES, Instruction

_CVT = re.compile(
    r"cvt(?:\.pack)?(?P<mode>(?:\.(?:rni|rzi|rmi|rpi|rn|rz|rm|rp|rna|ftz|sat|satfinite|relu))*)\.(?P<to>\w+)\.(?P<from>\w+)$"
)


def _convert(emitter: Emitter, instruction: Instruction) -> None:
    match = _CVT.match(instruction.opcode)
    if not match or ".pack" in instruction.opcode:
        raise emitter.unsupported()
    target, source = match["to"], match["from"]
    modes = set(match["mode"].split(".")[1:])
    if target in _FLOAT8 or source in _FLOAT8:
        _convert_float8(emitter, instruction, target, source, modes)
    elif target in SIZES and source in SIZES:
        _convert_number(emitter, instruction, target, source, modes)
    else:
        raise emitter.unsupported()


def _convert_number(
    emitter: Emitter, instruction: Instruction, target: str, source: str, modes: set[str]
) -> None:
    if "satfinite" in modes:
        raise emitter.unsupported()
    floats = ("f16", "bf16", "f32", "f64")
    if target in ("f16x2", "bf16x2") and source == "f32":
        _convert_pair(emitter, instruction, target[:-2], modes)
    elif target == "tf32" and source == "f32":
        mode = next((m for m in ("rna", "rn", "rz") if m in modes), "rna")
        value = emitter.read(instruction.operands[1], "f32")
        emitter.write(instruction.operands[0], f"float_to_tf32({value}, {mode!r}).view(u4)", "b32")
    elif source in floats and target in floats:
        _convert_floats(emitter, instruction, target, source, modes)
    elif source in floats and target[0] in "us":
        mode = next((m for m in ("rni", "rzi", "rmi", "rpi") if m in modes), "rzi")
        value = flushed(working(emitter, instruction.operands[1], source), modes)
        dtype = ("i" if target[0] == "s" else "u") + str(SIZES[target])
        emitter.write(instruction.operands[0], f"to_integer({value}, {dtype!r}, {mode!r})", target)
    elif target in floats and source[0] in "us":
        _convert_integer(emitter, instruction, target, source, modes)
    elif target[0] in "us" and source[0] in "us":
        value = emitter.read(instruction.operands[1], source)
        dtype = ("i" if target[0] == "s" else "u") + str(SIZES[target])
        text = f"clamp_integer({value}, {dtype!r})" if "sat" in modes else f"{value}.astype({dtype})"
        emitter.write(instruction.operands[0], text, target)
    else:
        raise emitter.unsupported()


_FLOAT8 = ("e4m3x2", "e5m2x2")


def _convert_float8(
    emitter: Emitter, instruction: Instruction, target: str, source: str, modes: set[str]
) -> None:
    """Two numbers at a time; the first operand, or the upper half, is the upper byte."""
    first = instruction.operands[1]
    if source in _FLOAT8 and target == "f16x2" and modes <= {"rn", "relu"}:
        both = emitter.temporary(f"float8_pair({emitter.read(first, 'b16')}, {source[:4]!r})")
        low, high = (narrowed(clamped(f"{both}[{i}]", modes), "f16") for i in range(2))
        emitter.write(instruction.operands[0], f"join({low}, {high})", "b32")
        return
    if target not in _FLOAT8 or modes - {"relu"} != {"rn", "satfinite"}:
        raise emitter.unsupported()
    if source == "f32":
        high, low = (emitter.read(o, "f32") for o in instruction.operands[1:3])
    elif source == "f16x2":
        both = emitter.temporary(f"halves({emitter.read(first, 'b32')}, 'f16')")
        low, high = f"{both}[0]", f"{both}[1]"
    else:
        raise emitter.unsupported()
    low, high = (clamped(value, modes) for value in (low, high))
    emitter.write(instruction.operands[0], f"join_float8({low}, {high}, {target[:4]!r})", "b16")


def _convert_pair(emitter: Emitter, instruction: Instruction, kind: str, modes: set[str]) -> None:
    high, low = (emitter.read(o, "f32") for o in instruction.operands[1:3])
    mode = "rz" if "rz" in modes else "rn"
    if modes - {"rn", "rz", "relu"}:
        raise emitter.unsupported()
    name = "float_to_half" if kind == "f16" else "float_to_bfloat"
    low, high = (clamped(v, modes) for v in (low, high))
    emitter.write(instruction.operands[0], f"join({name}({low}, {mode!r}), {name}({high}, {mode!r}))", "b32")


def _convert_floats(
    emitter: Emitter, instruction: Instruction, target: str, source: str, modes: set[str]
) -> None:
    operand = instruction.operands[1]
    value = flushed(working(emitter, operand, source), modes)
    integral = next((m for m in ("rni", "rzi", "rmi", "rpi") if m in modes), None)
    if integral:
        value = f"{ {'rni': 'rint', 'rzi': 'trunc', 'rmi': 'floor', 'rpi': 'ceil'}[integral] }({value})"
    mode = next((m for m in ("rz", "rm", "rp") if m in modes), "rn")
    if target in ("f16", "bf16") and source != "f64":
        if mode not in ("rn", "rz"):
            raise emitter.unsupported("rounding")
        name = "float_to_half" if target == "f16" else "float_to_bfloat"
        emitter.write(instruction.operands[0], f"{name}({clamped(value, modes)}, {mode!r})", target)
    elif target in ("f16", "bf16"):
        if mode != "rn":
            raise emitter.unsupported("rounding")
        name = "double_to_half_exact" if target == "f16" else "double_to_bfloat"
        emitter.write(instruction.operands[0], f"{name}({clamped(value, modes)})", target)
    elif target == "f32" and source == "f64":
        finish(emitter, f"round32({value}, {mode!r})", "f32", modes)
    else:
        finish(emitter, f"{value}.astype({working_dtype(target)})", target, modes - {"ftz"})


def _convert_integer(
    emitter: Emitter, instruction: Instruction, target: str, source: str, modes: set[str]
) -> None:
    value = emitter.read(instruction.operands[1], source)
    mode = next((m for m in ("rz", "rm", "rp") if m in modes), "rn")
    exact = SIZES[source] <= 4
    if mode != "rn" and (target != "f32" or not exact):
        raise emitter.unsupported("rounding")
    if target == "f64" or (target == "f32" and mode == "rn"):
        finish(emitter, f"{value}.astype({working_dtype(target)})", target, modes)
    elif target == "f32":
        finish(emitter, f"round32({value}.astype(f8), {mode!r})", target, modes)
    elif target in ("f16", "bf16") and exact:
        finish(emitter, f"odd32({value}.astype(f8))", target, modes)
    else:
        raise emitter.unsupported()


def _convert_address(emitter: Emitter, instruction: Instruction) -> None:
    """`cvta`: global, constant and parameter addresses are generic already; shared and local have their windows."""
    to = instruction.parts[1] == "to"
    space = instruction.parts[2 if to else 1].partition("::")[0]
    type_ = instruction.parts[-1]
    source = instruction.operands[1]
    value = emitter.read(source, type_)
    if space in ("global", "const"):
        emitter.write(instruction.operands[0], value, type_)
        return
    if space not in ("shared", "local") or type_ != "u64":
        raise emitter.unsupported()
    window = f"{space.upper()}_WINDOW"
    emitter.write(instruction.operands[0], f"{value} {'-' if to else '+'} {window}", type_)


def _isspacep(emitter: Emitter, instruction: Instruction) -> None:
    space = instruction.parts[1].partition("::")[0]
    if space not in ("shared", "local", "global"):
        raise emitter.unsupported()
    value = emitter.read(instruction.operands[1], "u64")
    emitter.write(instruction.operands[0], f"in_space({value}, {space!r})", "pred")


CONVERSIONS: dict[str, Handler] = {
    "cvt": _convert,
    "cvta": _convert_address,
    "isspacep": _isspacep,
}
