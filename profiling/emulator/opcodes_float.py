"""Floating-point instructions as generated text."""

from __future__ import annotations

import re
from collections.abc import Callable

from mctskernel.profiling.emulator.codegen import Emitter, Handler
from mctskernel.profiling.emulator.ptx import SIZES, Instruction, Operand

FLOATS = ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2")

# Floating point: opcode -> text over operands computed in the working type (f4, f8, f2; bf16 works in f4).
_FLOAT = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "min": "fmin({0}, {1})",
    "max": "fmax({0}, {1})",
    "min.NaN": "minimum({0}, {1})",
    "max.NaN": "maximum({0}, {1})",
    "abs": "absolute({0})",
    "neg": "negative({0})",
    "sqrt": "sqrt({0})",
    "rsqrt": "{1} / sqrt({0})",
    "rcp": "{1} / {0}",
    "ex2": "exp2({0})",
    "lg2": "log2({0})",
    "sin": "sin({0})",
    "cos": "cos({0})",
    "tanh": "tanh({0})",
    "copysign": "copysign({1}, {0})",
    "min.xorsign": "xor_sign(fmin(absolute({0}), absolute({1})), {0}, {1})",
    "max.xorsign": "xor_sign(fmax(absolute({0}), absolute({1})), {0}, {1})",
}
_FLOAT_MODIFIERS = "rn rz rm rp rna approx full ftz sat NaN relu xorsign abs"
_DIRECTED = {"rz", "rm", "rp"}
_EXACT_IN_DOUBLE = frozenset(("add", "sub", "mul", "div", "sqrt", "rcp"))


def float_operation(emitter: Emitter, instruction: Instruction) -> None:
    base, type_ = instruction.parts[0], instruction.parts[-1]
    modifiers = _modifiers(emitter, _FLOAT_MODIFIERS)
    if type_ not in FLOATS or ("abs" in modifiers and (type_ != "f32" or "xorsign" not in modifiers)):
        raise emitter.unsupported()
    name = base + (".NaN" if "NaN" in modifiers else "") + (".xorsign" if "xorsign" in modifiers else "")
    template = _FLOAT.get(name)
    if template is None:
        raise emitter.unsupported()
    sources = instruction.operands[1:]
    directed = next((m for m in _DIRECTED if m in modifiers), None)
    if type_ in ("f16x2", "bf16x2"):
        _packed(emitter, instruction, modifiers, lambda values: _fill(emitter, template, values, "f4"))
        return
    if directed and (type_ != "f32" or base not in _EXACT_IN_DOUBLE):
        raise emitter.unsupported("rounding")
    if directed:
        exact = {"add": "odd_sum({0}, {1})", "sub": "odd_sum({0}, negative({1}))"}.get(base, template)
        values = [_double(emitter, o, modifiers) for o in sources]
        text = f"round32({_fill(emitter, exact, values, 'f8')}, {directed!r})"
    else:
        values = [flushed(working(emitter, o, type_), modifiers) for o in sources]
        text = _fill(emitter, template, values, working_dtype(type_))
    finish(emitter, text, type_, modifiers)


def _double(emitter: Emitter, operand: Operand | None, modifiers: set[str]) -> str:
    """An f32 operand in double precision, where its products, and its quotients after rounding, are exact."""
    if "ftz" in modifiers:
        return f"flush({emitter.read(operand, 'f32')}).astype(f8)"
    return emitter.wide(operand)


def _fill(emitter: Emitter, template: str, values: list[str], dtype: str) -> str:
    if template.startswith("{1} /"):
        values = [*values, emitter.constant(1, dtype)]
    return template.format(*values)


def _packed(
    emitter: Emitter, instruction: Instruction, modifiers: set[str], compute: Callable[[list[str]], str]
) -> None:
    """Apply a function of the operands' texts to both halves of their registers."""
    kind = instruction.parts[-1][:-2]
    both = [
        emitter.temporary(f"halves({emitter.read(o, 'b32')}, {kind!r})") for o in instruction.operands[1:]
    ]
    texts = (compute([f"{pair_}[{i}]" for pair_ in both]) for i in range(2))
    low, high = (narrowed(clamped(text, modifiers), kind) for text in texts)
    emitter.write(instruction.operands[0], f"join({low}, {high})", "b32")


def working_dtype(type_: str) -> str:
    return {"f32": "f4", "f64": "f8", "f16": "f4", "bf16": "f4"}[type_]


def working(emitter: Emitter, operand: Operand | None, type_: str) -> str:
    """An operand in the type that it is computed in; halves are computed in f32, which rounds as they would."""
    if type_ == "f16":
        return f"{emitter.read(operand, 'f16')}.astype(f4)"
    if type_ == "bf16":
        return f"bfloat_to_float({emitter.read(operand, 'b16')})"
    return emitter.read(operand, type_)


def flushed(text: str, modifiers: set[str]) -> str:
    return f"flush({text})" if "ftz" in modifiers else text


def clamped(text: str, modifiers: set[str]) -> str:
    if "relu" in modifiers:
        text = f"relu({text})"
    return f"saturate({text})" if "sat" in modifiers else text


def narrowed(text: str, kind: str, mode: str = "rn") -> str:
    return f"float_to_{'half' if kind == 'f16' else 'bfloat'}({text}, {mode!r})"


def finish(emitter: Emitter, text: str, type_: str, modifiers: set[str]) -> None:
    text = clamped(text, modifiers)
    if type_ in ("f16", "bf16"):
        emitter.write(emitter.instruction.operands[0], narrowed(text, type_), type_)
        return
    emitter.write(emitter.instruction.operands[0], flushed(text, modifiers), type_)


def fused_multiply_add(emitter: Emitter, instruction: Instruction) -> None:
    type_ = instruction.parts[-1]
    modifiers = _modifiers(emitter, "rn rz rm rp ftz sat relu approx")
    directed = next((m for m in _DIRECTED if m in modifiers), None)
    a, b, c = instruction.operands[1:]
    if directed and type_ != "f32":
        raise emitter.unsupported("rounding")
    if type_ == "f32":
        parts = [_double(emitter, o, modifiers) for o in (a, b, c)]
        if directed:
            text = f"round32(odd_sum({parts[0]} * {parts[1]}, {parts[2]}), {directed!r})"
        else:
            # Rounded to f64 and then to f32: one ulp off in about one of 2**29 cases, for a third of the time.
            text = f"({parts[0]} * {parts[1]} + {parts[2]}).astype(f4)"
        finish(emitter, text, type_, modifiers)
    elif type_ == "f64":
        parts = [emitter.read(o, "f64") for o in (a, b, c)]
        finish(emitter, f"fma64({', '.join(parts)})", type_, modifiers)
    elif type_ in ("f16", "bf16"):
        values = [working(emitter, o, type_) for o in (a, b, c)]
        finish(emitter, _narrow_fma(values, type_), type_, modifiers)
    elif type_ in ("f16x2", "bf16x2"):
        _packed(emitter, instruction, modifiers, lambda values: _narrow_fma(values, type_[:-2]))
    else:
        raise emitter.unsupported()


def _narrow_fma(values: list[str], kind: str) -> str:
    """The sum in f32 rounded to odd. It is exact in f64 as far as f16 can tell; bf16 has exponents far apart."""
    a, b, c = (f"{value}.astype(f8)" for value in values)
    return f"odd32({a} * {b} + {c})" if kind == "f16" else f"odd32(odd_sum({a} * {b}, {c}))"


def _modifiers(emitter: Emitter, known: str) -> set[str]:
    """The opcode's modifiers; raises on one that the table does not name."""
    found = set(emitter.instruction.parts[1:])
    strange = {m for m in found if m not in known.split() and m not in SIZES}
    if strange:
        raise emitter.unsupported("." + ", .".join(sorted(strange)))
    return found


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


_FLOAT_NUMBERS = ("f16", "bf16", "f32", "f64")
_TO_INTEGER = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}


def _convert_number(
    emitter: Emitter, instruction: Instruction, target: str, source: str, modes: set[str]
) -> None:
    if "satfinite" in modes:
        raise emitter.unsupported()
    result, operand = instruction.operands[:2]
    integral = next((m for m in _TO_INTEGER if m in modes), None)
    dtype = ("i" if target[0] == "s" else "u") + str(SIZES[target])
    if target in ("f16x2", "bf16x2") and source == "f32":
        _convert_pair(emitter, instruction, target[:-2], modes)
    elif target == "tf32" and source == "f32":
        mode = next((m for m in ("rna", "rn", "rz") if m in modes), "rna")
        emitter.write(result, f"float_to_tf32({emitter.read(operand, 'f32')}, {mode!r}).view(u4)", "b32")
    elif source in _FLOAT_NUMBERS and target in _FLOAT_NUMBERS:
        value = flushed(working(emitter, operand, source), modes)
        value = f"{_TO_INTEGER[integral]}({value})" if integral else value
        _to_float(emitter, value, target, modes, double=source == "f64")
    elif source in _FLOAT_NUMBERS and target[0] in "us":
        value = flushed(working(emitter, operand, source), modes)
        emitter.write(result, f"to_integer({value}, {dtype!r}, {integral or 'rzi'!r})", target)
    elif target in _FLOAT_NUMBERS and source[0] in "us":
        value, nearest = emitter.read(operand, source), not modes & _DIRECTED
        if not (nearest or target == "f32") or (
            SIZES[source] == 8 and (target in ("f16", "bf16") or not nearest)
        ):
            raise emitter.unsupported("rounding")
        direct = target == "f32" and nearest
        value = value if direct else f"{value}.astype(f8)"
        _to_float(emitter, value, target, modes, double=not direct)
    elif target[0] in "us" and source[0] in "us":
        value = emitter.read(operand, source)
        text = f"clamp_integer({value}, {dtype!r})" if "sat" in modes else f"{value}.astype({dtype})"
        emitter.write(result, text, target)
    else:
        raise emitter.unsupported()


def _to_float(emitter: Emitter, value: str, target: str, modes: set[str], *, double: bool) -> None:
    """Write a number, in double precision or not, rounded once."""
    mode = next((m for m in _DIRECTED if m in modes), "rn")
    if target in ("f16", "bf16"):
        if mode != "rn" and (double or mode != "rz"):
            raise emitter.unsupported("rounding")
        value = f"odd32({value})" if double and target == "bf16" else value
        emitter.write(emitter.instruction.operands[0], narrowed(clamped(value, modes), target, mode), target)
    elif target == "f32" and double:
        finish(emitter, f"round32({value}, {mode!r})", "f32", modes)
    else:
        finish(emitter, f"{value}.astype({working_dtype(target)})", target, modes - {"ftz"})


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
    if modes - {"rn", "rz", "relu"}:
        raise emitter.unsupported()
    mode = "rz" if "rz" in modes else "rn"
    high, low = (
        narrowed(clamped(emitter.read(o, "f32"), modes), kind, mode) for o in instruction.operands[1:3]
    )
    emitter.write(instruction.operands[0], f"join({low}, {high})", "b32")


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


CONVERSIONS: dict[str, Handler] = {"cvt": _convert, "cvta": _convert_address, "isspacep": _isspacep}
