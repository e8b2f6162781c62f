"""Arithmetic, comparison, conversion and move instructions as generated text; one table row an opcode."""

from __future__ import annotations

import re

from mctskernel.profiling.emulator.codegen import Emitter, Handler, pair
from mctskernel.profiling.emulator.ptx import SIZES, Immediate, Instruction, Operand

_UNSIGNED = {8: "u64", 4: "u32", 2: "u16", 1: "u8"}
_FLOATS = ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2")


def unsigned(type_: str) -> str:
    return _UNSIGNED[SIZES[type_]]


def _modifiers(emitter: Emitter, known: str) -> set[str]:
    """The opcode's modifiers; raises on one that the table does not name."""
    found = set(emitter.instruction.parts[1:])
    strange = {m for m in found if m not in known.split() and m not in SIZES}
    if strange:
        raise emitter.unsupported("." + ", .".join(sorted(strange)))
    return found


# Integer and bitwise templates: opcode -> (text, operand types); "T" is the instruction's type, "U" its unsigned kin.
_INTEGER: dict[str, tuple[str, str, str]] = {
    "add": ("{0} + {1}", "U U", "U"),
    "sub": ("{0} - {1}", "U U", "U"),
    "mul.lo": ("{0} * {1}", "U U", "U"),
    "mul.hi": ("multiply_high({0}, {1})", "T T", "T"),
    "mul.wide": ("{0}.astype({W}) * {1}.astype({W})", "T T", "W"),
    "mad.lo": ("{0} * {1} + {2}", "U U U", "U"),
    "mad.hi": ("multiply_high({0}, {1}) + {2}", "T T T", "T"),
    "mad.wide": ("{0}.astype({W}) * {1}.astype({W}) + {2}", "T T W", "W"),
    "mul24.lo": ("low24({0}) * low24({1})", "T T", "T"),
    "mad24.lo": ("low24({0}) * low24({1}) + {2}", "T T T", "T"),
    "div": ("divide({0}, {1})", "T T", "T"),
    "rem": ("remainder({0}, {1})", "T T", "T"),
    "min": ("minimum({0}, {1})", "T T", "T"),
    "max": ("maximum({0}, {1})", "T T", "T"),
    "abs": ("absolute({0})", "T", "T"),
    "neg": ("negative({0})", "T", "T"),
    "and": ("{0} & {1}", "T T", "T"),
    "or": ("{0} | {1}", "T T", "T"),
    "xor": ("{0} ^ {1}", "T T", "T"),
    "not": ("~{0}", "T", "T"),
    "cnot": ("({0} == {Z}).astype({D})", "T", "T"),
    "popc": ("bit_count({0})", "T", "u32"),
    "clz": ("leading_zeros({0})", "T", "u32"),
    "bfind": ("find_bit({0})", "T", "u32"),
    "bfind.shiftamt": ("find_bit({0}, shift_amount=True)", "T", "u32"),
    "brev": ("reverse_bits({0})", "T", "T"),
    "bfe": ("extract_field({0}, {1}, {2})", "T u32 u32", "T"),
    "bfi": ("insert_field({0}, {1}, {2}, {3})", "T T u32 u32", "T"),
    "sad": ("absolute_difference({0}, {1}, {2})", "T T T", "T"),
    "shf.l.clamp": ("funnel_left({0}, {1}, {2}, clamp=True)", "T T u32", "T"),
    "shf.l.wrap": ("funnel_left({0}, {1}, {2}, clamp=False)", "T T u32", "T"),
    "shf.r.clamp": ("funnel_right({0}, {1}, {2}, clamp=True)", "T T u32", "T"),
    "shf.r.wrap": ("funnel_right({0}, {1}, {2}, clamp=False)", "T T u32", "T"),
}


def _integer(emitter: Emitter, instruction: Instruction) -> None:
    *name, type_ = instruction.parts
    row = _INTEGER.get(".".join(name))
    if row is None:
        raise emitter.unsupported()
    text, sources, result = row
    wide = {"s16": "s32", "u16": "u32", "s32": "s64", "u32": "u64"}
    types = {"T": type_, "U": unsigned(type_), "W": wide.get(type_, type_)}
    values = [
        emitter.read(operand, types.get(kind, kind))
        for operand, kind in zip(instruction.operands[1:], sources.split(), strict=True)
    ]
    from_wide = types["W"][0].replace("s", "i") + str(SIZES[types["W"]])
    filled = text.format(
        *values,
        W=from_wide,
        D=f"u{SIZES[type_]}",
        Z=emitter.constant(0, f"u{SIZES[type_]}") if type_ != "pred" else "",
    )
    emitter.write(instruction.operands[0], filled, types.get(result, result))


def _add_like(emitter: Emitter, instruction: Instruction) -> None:
    if instruction.parts[-1] in _FLOATS:
        _float(emitter, instruction)
    elif instruction.opcode in ("add.sat.s32", "sub.sat.s32"):
        a, b = (emitter.read(o, "s32") for o in instruction.operands[1:])
        name = "add_saturating" if instruction.parts[0] == "add" else "subtract_saturating"
        emitter.write(instruction.operands[0], f"{name}({a}, {b})", "s32")
    else:
        _integer(emitter, instruction)


_SHIFTS = {"shl": "shift_left", "shr": "shift_right"}


def _shift(emitter: Emitter, instruction: Instruction) -> None:
    base, type_ = instruction.parts
    target, value, amount = instruction.operands
    type_ = unsigned(type_) if base == "shl" or type_[0] == "b" else type_
    text = emitter.read(value, type_)
    if isinstance(amount, Immediate) and 0 <= amount.value < 8 * SIZES[type_]:
        dtype = ("i" if type_[0] == "s" else "u") + str(SIZES[type_])
        symbol = "<<" if base == "shl" else ">>"
        emitter.write(target, f"{text} {symbol} {emitter.constant(amount.value, dtype)}", type_)
    else:
        emitter.write(target, f"{_SHIFTS[base]}({text}, {emitter.read(amount, 'u32')})", type_)


def _lop3(emitter: Emitter, instruction: Instruction) -> None:
    if instruction.opcode != "lop3.b32" or not isinstance(instruction.operands[4], Immediate):
        raise emitter.unsupported()
    a, b, c = (emitter.read(o, "b32") for o in instruction.operands[1:4])
    emitter.write(
        instruction.operands[0], f"lookup3({a}, {b}, {c}, {instruction.operands[4].value & 255})", "b32"
    )


def _prmt(emitter: Emitter, instruction: Instruction) -> None:
    mode = instruction.parts[2] if len(instruction.parts) > 2 else None
    a, b, c = (emitter.read(o, "b32") for o in instruction.operands[1:4])
    if mode not in (None, "f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
        raise emitter.unsupported()
    text = f"permute_mode({a}, {b}, {c}, {mode!r})" if mode else f"permute_bytes({a}, {b}, {c})"
    emitter.write(instruction.operands[0], text, "b32")


def _dot(emitter: Emitter, instruction: Instruction) -> None:
    *name, first, second = instruction.parts
    a, b, c = (emitter.read(o, "b32") for o in instruction.operands[1:4])
    third = c if first == second == "u32" else emitter.read(instruction.operands[3], "s32")
    signs = f"signed_a={first == 's32'}, signed_b={second == 's32'}"
    text = f"dot4({a}, {b}, {third}, {signs})"
    if name[0] == "dp2a":
        text = f"dot2({a}, {b}, {third}, {signs}, high={name[1] == 'hi'})"
    emitter.write(instruction.operands[0], text, "b32")


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
}
_FLOAT_MODIFIERS = "rn rz rm rp rna approx full ftz sat NaN relu xorsign"
_EXACT_IN_DOUBLE = frozenset(("add", "sub", "mul", "div", "sqrt", "rcp"))


def _float(emitter: Emitter, instruction: Instruction) -> None:
    base, type_ = instruction.parts[0], instruction.parts[-1]
    modifiers = _modifiers(emitter, _FLOAT_MODIFIERS)
    if "xorsign" in modifiers or type_ not in _FLOATS:
        raise emitter.unsupported()
    name = base + (".NaN" if "NaN" in modifiers else "")
    template = _FLOAT.get(name)
    if template is None:
        raise emitter.unsupported()
    sources = instruction.operands[1:]
    directed = next((m for m in ("rz", "rm", "rp") if m in modifiers), None)
    if type_ in ("f16x2", "bf16x2"):
        _packed(emitter, instruction, template, modifiers)
        return
    if directed and (type_ != "f32" or base not in _EXACT_IN_DOUBLE):
        raise emitter.unsupported("rounding")
    if directed:
        exact = {"add": "odd_sum({0}, {1})", "sub": "odd_sum({0}, negative({1}))"}.get(base, template)
        values = [_double(emitter, o, modifiers) for o in sources]
        text = f"round32({_fill(emitter, exact, values, 'f8')}, {directed!r})"
    else:
        values = [_flushed(working(emitter, o, type_), modifiers) for o in sources]
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


def _packed(emitter: Emitter, instruction: Instruction, template: str, modifiers: set[str]) -> None:
    kind = instruction.parts[-1][:-2]
    both = [
        emitter.temporary(f"halves({emitter.read(o, 'b32')}, {kind!r})") for o in instruction.operands[1:]
    ]
    results = []
    for i in range(2):
        text = _fill(emitter, template, [f"{pair_}[{i}]" for pair_ in both], "f4")
        results.append(narrowed(_clamped(text, modifiers), kind))
    emitter.write(instruction.operands[0], f"join({results[0]}, {results[1]})", "b32")


def working_dtype(type_: str) -> str:
    return {"f32": "f4", "f64": "f8", "f16": "f4", "bf16": "f4"}[type_]


def working(emitter: Emitter, operand: Operand | None, type_: str) -> str:
    """An operand in the type that it is computed in; halves are computed in f32, which rounds as they would."""
    if type_ == "f16":
        return f"{emitter.read(operand, 'f16')}.astype(f4)"
    if type_ == "bf16":
        return f"bfloat_to_float({emitter.read(operand, 'b16')})"
    return emitter.read(operand, type_)


def _flushed(text: str, modifiers: set[str]) -> str:
    return f"flush({text})" if "ftz" in modifiers else text


def _clamped(text: str, modifiers: set[str]) -> str:
    if "relu" in modifiers:
        text = f"relu({text})"
    return f"saturate({text})" if "sat" in modifiers else text


def narrowed(text: str, kind: str) -> str:
    return f"float_to_half({text})" if kind == "f16" else f"float_to_bfloat({text})"


def finish(emitter: Emitter, text: str, type_: str, modifiers: set[str]) -> None:
    text = _clamped(text, modifiers)
    if type_ in ("f16", "bf16"):
        emitter.write(emitter.instruction.operands[0], narrowed(text, type_), type_)
        return
    emitter.write(emitter.instruction.operands[0], _flushed(text, modifiers), type_)


def _fma(emitter: Emitter, instruction: Instruction) -> None:
    type_ = instruction.parts[-1]
    modifiers = _modifiers(emitter, "rn rz rm rp ftz sat relu approx")
    directed = next((m for m in ("rz", "rm", "rp") if m in modifiers), None)
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
        parts = [f"{working(emitter, o, type_)}.astype(f8)" for o in (a, b, c)]
        text = _narrow_fma(parts, type_)
        finish(emitter, text, type_, modifiers)
    elif type_ in ("f16x2", "bf16x2"):
        kind = type_[:-2]
        both = [emitter.temporary(f"halves({emitter.read(o, 'b32')}, {kind!r})") for o in (a, b, c)]
        results = []
        for i in range(2):
            parts = [f"{p}[{i}].astype(f8)" for p in both]
            results.append(narrowed(_clamped(_narrow_fma(parts, kind), modifiers), kind))
        emitter.write(instruction.operands[0], f"join({results[0]}, {results[1]})", "b32")
    else:
        raise emitter.unsupported()


def _narrow_fma(parts: list[str], kind: str) -> str:
    """The sum in f32 rounded to odd. It is exact in f64 as far as f16 can tell; bf16 has exponents far apart."""
    a, b, c = parts
    return f"odd32({a} * {b} + {c})" if kind == "f16" else f"odd32(odd_sum({a} * {b}, {c}))"


def _mul_like(emitter: Emitter, instruction: Instruction) -> None:
    if instruction.parts[-1] in _FLOATS:
        _float(emitter, instruction)
    else:
        _integer(emitter, instruction)


def _mad(emitter: Emitter, instruction: Instruction) -> None:
    if instruction.parts[-1] in _FLOATS:
        _fma(emitter, instruction)
    else:
        _integer(emitter, instruction)


def _move(emitter: Emitter, instruction: Instruction) -> None:
    if len(instruction.parts) != 2:
        raise emitter.unsupported()
    target, source = instruction.operands
    emitter.write(target, emitter.read(source, instruction.parts[1]), instruction.parts[1])


_COMPARE = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "lo": "<",
    "ls": "<=",
    "hi": ">",
    "hs": ">=",
}
_OPPOSITE = {"equ": "!=", "neu": "==", "ltu": ">=", "leu": ">", "gtu": "<=", "geu": "<"}


def comparison(
    emitter: Emitter, name: str, type_: str, a: Operand | None, b: Operand | None, *, ftz: bool
) -> str:
    """Text of a comparison; `ltu` and its kin are true for unordered operands."""
    if type_ in ("f16x2", "bf16x2"):
        raise emitter.unsupported()
    floating = type_ in _FLOATS
    kind = unsigned(type_) if type_[0] == "b" and not floating else type_
    x, y = (working(emitter, o, type_) if floating else emitter.read(o, kind) for o in (a, b))
    if ftz:
        x, y = f"flush({x})", f"flush({y})"
    if name in _COMPARE:
        # IEEE: != alone is true of NaN, which PTX calls neu
        text = f"({x} {_COMPARE[name]} {y})"
        return f"(({x} < {y}) | ({x} > {y}))" if floating and name == "ne" else text
    if name in _OPPOSITE and floating:
        if name == "neu":
            return f"({x} != {y})"
        if name == "equ":
            return f"(~(({x} < {y}) | ({x} > {y})))"
        return f"(~({x} {_OPPOSITE[name]} {y}))"
    if name in ("num", "nan") and floating:
        unordered = f"(({x} != {x}) | ({y} != {y}))"
        return unordered if name == "nan" else f"(~{unordered})"
    raise emitter.unsupported()


def _compared(
    emitter: Emitter, instruction: Instruction, parts: list[str], type_: str
) -> tuple[str, str | None, str]:
    ftz = "ftz" in parts
    names = [p for p in parts if p != "ftz"]
    a, b = instruction.operands[1:3]
    result = emitter.temporary(comparison(emitter, names[0], type_, a, b, ftz=ftz))
    if len(names) == 1:
        return result, None, ""
    if names[1] not in ("and", "or", "xor") or len(instruction.operands) != 4:
        raise emitter.unsupported()
    return (
        result,
        emitter.read(instruction.operands[3], "pred"),
        {"and": "&", "or": "|", "xor": "^"}[names[1]],
    )


def _setp(emitter: Emitter, instruction: Instruction) -> None:
    type_ = instruction.parts[-1]
    result, other, symbol = _compared(emitter, instruction, instruction.parts[1:-1], type_)
    first, second = pair(instruction.operands[0])
    true = result if other is None else emitter.temporary(f"{result} {symbol} {other}")
    false = f"~{result}" if other is None else f"~{result} {symbol} {other}"
    false = emitter.temporary(false) if second is not None else false
    emitter.write(first, true, "pred")
    if second is not None:
        emitter.write(second, false, "pred")


def _set(emitter: Emitter, instruction: Instruction) -> None:
    target, source = instruction.parts[-2:]
    result, other, symbol = _compared(emitter, instruction, instruction.parts[1:-2], source)
    if other is not None:
        result = f"({result} {symbol} {other})"
    if target == "f32":
        emitter.write(instruction.operands[0], f"{result}.astype(f4)", "f32")
    elif target in ("u32", "s32"):
        emitter.write(instruction.operands[0], f"negative({result}.astype(i4))", "s32")
    else:
        raise emitter.unsupported()


def _selp(emitter: Emitter, instruction: Instruction) -> None:
    type_ = instruction.parts[-1]
    a, b = (emitter.read(o, type_) for o in instruction.operands[1:3])
    condition = emitter.read(instruction.operands[3], "pred")
    emitter.write(instruction.operands[0], f"select({condition}, {a}, {b})", type_)


def _slct(emitter: Emitter, instruction: Instruction) -> None:
    type_, selector = instruction.parts[-2:]
    a, b = (emitter.read(o, type_) for o in instruction.operands[1:3])
    c = emitter.read(instruction.operands[3], selector)
    zero = emitter.constant(0, "f4" if selector == "f32" else "i4")
    emitter.write(instruction.operands[0], f"select({c} >= {zero}, {a}, {b})", type_)


def _testp(emitter: Emitter, instruction: Instruction) -> None:
    name, type_ = instruction.parts[1:]
    if name not in ("finite", "infinite", "number", "notanumber", "normal", "subnormal"):
        raise emitter.unsupported()
    value = emitter.read(instruction.operands[1], type_)
    emitter.write(instruction.operands[0], f"test_property({value}, {name!r})", "pred")


_CVT = re.compile(
    r"cvt(?:\.pack)?(?P<mode>(?:\.(?:rni|rzi|rmi|rpi|rn|rz|rm|rp|rna|ftz|sat|satfinite|relu))*)\.(?P<to>\w+)\.(?P<from>\w+)$"
)


def _convert(emitter: Emitter, instruction: Instruction) -> None:
    match = _CVT.match(instruction.opcode)
    if not match or match["from"] not in SIZES or match["to"] not in SIZES or ".pack" in instruction.opcode:
        raise emitter.unsupported()
    target, source = match["to"], match["from"]
    modes = set(match["mode"].split(".")[1:])
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
        value = _flushed(working(emitter, instruction.operands[1], source), modes)
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


def _convert_pair(emitter: Emitter, instruction: Instruction, kind: str, modes: set[str]) -> None:
    high, low = (emitter.read(o, "f32") for o in instruction.operands[1:3])
    mode = "rz" if "rz" in modes else "rn"
    if modes - {"rn", "rz", "relu"}:
        raise emitter.unsupported()
    name = "float_to_half" if kind == "f16" else "float_to_bfloat"
    low, high = (_clamped(v, modes) for v in (low, high))
    emitter.write(instruction.operands[0], f"join({name}({low}, {mode!r}), {name}({high}, {mode!r}))", "b32")


def _convert_floats(
    emitter: Emitter, instruction: Instruction, target: str, source: str, modes: set[str]
) -> None:
    operand = instruction.operands[1]
    value = _flushed(working(emitter, operand, source), modes)
    integral = next((m for m in ("rni", "rzi", "rmi", "rpi") if m in modes), None)
    if integral:
        value = f"{ {'rni': 'rint', 'rzi': 'trunc', 'rmi': 'floor', 'rpi': 'ceil'}[integral] }({value})"
    mode = next((m for m in ("rz", "rm", "rp") if m in modes), "rn")
    if target in ("f16", "bf16") and source != "f64":
        if mode not in ("rn", "rz"):
            raise emitter.unsupported("rounding")
        name = "float_to_half" if target == "f16" else "float_to_bfloat"
        emitter.write(instruction.operands[0], f"{name}({_clamped(value, modes)}, {mode!r})", target)
    elif target in ("f16", "bf16"):
        if mode != "rn":
            raise emitter.unsupported("rounding")
        name = "double_to_half_exact" if target == "f16" else "double_to_bfloat"
        emitter.write(instruction.operands[0], f"{name}({_clamped(value, modes)})", target)
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


def _nothing(emitter: Emitter, instruction: Instruction) -> None:
    """Hints without an effect that the emulator could see."""


ARITHMETIC: dict[str, Handler] = {
    **dict.fromkeys(
        [
            "cnot",
            "popc",
            "clz",
            "bfind",
            "brev",
            "bfe",
            "bfi",
            "sad",
            "shf",
            "and",
            "or",
            "xor",
            "not",
            "rem",
            "mul24",
            "mad24",
        ],
        _integer,
    ),
    **dict.fromkeys(("add", "sub"), _add_like),
    **dict.fromkeys(("mul", "div", "min", "max", "abs", "neg"), _mul_like),
    **dict.fromkeys(("sqrt", "rsqrt", "rcp", "ex2", "lg2", "sin", "cos", "tanh", "copysign"), _float),
    **dict.fromkeys(("shl", "shr"), _shift),
    **dict.fromkeys(("dp4a", "dp2a"), _dot),
    **dict.fromkeys(
        ("nanosleep", "prefetch", "prefetchu", "discard", "applypriority", "pmevent", "griddepcontrol"),
        _nothing,
    ),
    "fma": _fma,
    "mad": _mad,
    "lop3": _lop3,
    "prmt": _prmt,
    "mov": _move,
    "setp": _setp,
    "set": _set,
    "selp": _selp,
    "slct": _slct,
    "testp": _testp,
    "cvt": _convert,
    "cvta": _convert_address,
    "isspacep": _isspacep,
}
