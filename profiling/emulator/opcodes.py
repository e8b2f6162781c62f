"""Integer, bitwise, comparison and move instructions as generated text; one table row an opcode."""

from __future__ import annotations

from mctskernel.profiling.emulator.codegen import Emitter, Handler, pair
from mctskernel.profiling.emulator.opcodes_float import (
    CONVERSIONS,
    FLOATS,
    float_operation,
    fused_multiply_add,
    working,
)
from mctskernel.profiling.emulator.ptx import SIZES, Immediate, Instruction, Operand

_UNSIGNED = {8: "u64", 4: "u32", 2: "u16", 1: "u8"}


def unsigned(type_: str) -> str:
    return _UNSIGNED[SIZES[type_]]


# Templates: opcode -> (text, operand types); "T" is the instruction's type, "U" its unsigned kin.
_TEMPLATES: dict[str, tuple[str, str, str]] = {
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
    "shf.l.clamp": ("funnel({0}, {1}, {2}, left=True, clamp=True)", "T T u32", "T"),
    "shf.l.wrap": ("funnel({0}, {1}, {2}, left=True, clamp=False)", "T T u32", "T"),
    "shf.r.clamp": ("funnel({0}, {1}, {2}, left=False, clamp=True)", "T T u32", "T"),
    "shf.r.wrap": ("funnel({0}, {1}, {2}, left=False, clamp=False)", "T T u32", "T"),
    "selp": ("select({2}, {0}, {1})", "T T pred", "T"),
    **{
        f"testp.{name}": (f"test_property({{0}}, {name!r})", "T", "pred")
        for name in ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    },
    "add.sat": ("saturated({0}.astype(i8) + {1}.astype(i8))", "T T", "T"),
    "sub.sat": ("saturated({0}.astype(i8) - {1}.astype(i8))", "T T", "T"),
}


def _by_template(emitter: Emitter, instruction: Instruction) -> None:
    *name, type_ = instruction.parts
    row = _TEMPLATES.get(".".join(name))
    if row is None or type_ not in SIZES or (name[-1] == "sat" and type_ != "s32"):
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


def _with_carry(emitter: Emitter, instruction: Instruction) -> None:
    """`add.cc`, `addc`, `madc.hi.cc` and their kin; the parser names the condition code."""
    base, *middle, type_ = instruction.parts
    kind = unsigned(type_)
    if SIZES[type_] < 4 or set(middle) - {"lo", "hi", "cc"}:
        raise emitter.unsupported()
    target, carry = pair(instruction.operands[0])
    sources = instruction.operands[1:]
    before = emitter.constant(value=False, dtype="b1")
    if base.endswith("c"):
        before, sources = emitter.read(sources[-1], "pred"), sources[:-1]
    if base.startswith("mad"):
        a, b = (emitter.read(o, type_ if "hi" in middle else kind) for o in sources[:2])
        first = f"multiply_high({a}, {b}).astype(u{SIZES[type_]})" if "hi" in middle else f"{a} * {b}"
    else:
        first = emitter.read(sources[0], kind)
    name = "subtract_with_borrow" if base.startswith("sub") else "add_with_carry"
    result = emitter.temporary(f"{name}({first}, {emitter.read(sources[-1], kind)}, {before})")
    emitter.write(target, f"{result}[0]", kind)
    if carry is not None:
        emitter.write(carry, f"{result}[1]", "pred")


_PAIRS = ("s16x2", "u16x2")


def _pair_operation(emitter: Emitter, instruction: Instruction) -> None:
    """`add`, `min` and `max` of both halves of a register."""
    base, *modifiers, type_ = instruction.parts
    if modifiers or base not in ("add", "min", "max"):
        raise emitter.unsupported()
    a, b = (emitter.read(o, "b32") for o in instruction.operands[1:])
    emitter.write(instruction.operands[0], f"of_pairs({a}, {b}, {base!r}, {type_[0] + '16'!r})", "b32")


def _arithmetic(emitter: Emitter, instruction: Instruction) -> None:
    """Opcodes that several kinds of types share."""
    type_ = instruction.parts[-1]
    if "cc" in instruction.parts:
        _with_carry(emitter, instruction)
    elif type_ in _PAIRS:
        _pair_operation(emitter, instruction)
    elif type_ in FLOATS:
        handler = fused_multiply_add if instruction.parts[0] == "mad" else float_operation
        handler(emitter, instruction)
    else:
        _by_template(emitter, instruction)


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
    if instruction.opcode != "prmt.b32":  # NVRTC and Triton write the other modes nowhere
        raise emitter.unsupported()
    a, b, c = (emitter.read(o, "b32") for o in instruction.operands[1:4])
    emitter.write(instruction.operands[0], f"permute_bytes({a}, {b}, {c})", "b32")


def _dot(emitter: Emitter, instruction: Instruction) -> None:
    *name, first, second = instruction.parts
    a, b, c = (emitter.read(o, "b32") for o in instruction.operands[1:4])
    third = c if first == second == "u32" else emitter.read(instruction.operands[3], "s32")
    signs = f"signed_a={first == 's32'}, signed_b={second == 's32'}"
    text = f"dot4({a}, {b}, {third}, {signs})"
    if name[0] == "dp2a":
        text = f"dot2({a}, {b}, {third}, {signs}, high={name[1] == 'hi'})"
    emitter.write(instruction.operands[0], text, "b32")


def _move(emitter: Emitter, instruction: Instruction) -> None:
    if len(instruction.parts) != 2:
        raise emitter.unsupported()
    target, source = instruction.operands
    emitter.write(target, emitter.read(source, instruction.parts[1]), instruction.parts[1])


_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_COMPARE_INTEGERS = {**_COMPARE, "lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
_COMPARE_FLOATS = {
    # Of a NaN, IEEE's != alone is true; `ltu` and its kin are true for unordered operands.
    **{name: f"({{x}} {symbol} {{y}})" for name, symbol in _COMPARE.items()},
    "ne": "(({x} < {y}) | ({x} > {y}))",
    "neu": "({x} != {y})",
    "equ": "(~(({x} < {y}) | ({x} > {y})))",
    "ltu": "(~({x} >= {y}))",
    "leu": "(~({x} > {y}))",
    "gtu": "(~({x} <= {y}))",
    "geu": "(~({x} < {y}))",
    "nan": "(({x} != {x}) | ({y} != {y}))",
    "num": "(~(({x} != {x}) | ({y} != {y})))",
}


def comparison(
    emitter: Emitter, name: str, type_: str, a: Operand | None, b: Operand | None, *, ftz: bool
) -> str:
    floating = type_ in FLOATS
    if type_ in ("f16x2", "bf16x2") or name not in (_COMPARE_FLOATS if floating else _COMPARE_INTEGERS):
        raise emitter.unsupported()
    if not floating:
        kind = unsigned(type_) if type_[0] == "b" else type_
        return f"({emitter.read(a, kind)} {_COMPARE_INTEGERS[name]} {emitter.read(b, kind)})"
    x, y = (working(emitter, each, type_) for each in (a, b))
    if ftz:
        x, y = f"flush({x})", f"flush({y})"
    return _COMPARE_FLOATS[name].format(x=x, y=y)


def _compared(
    emitter: Emitter, instruction: Instruction, parts: tuple[str, ...], type_: str
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


def _slct(emitter: Emitter, instruction: Instruction) -> None:
    type_, selector = instruction.parts[-2:]
    a, b = (emitter.read(o, type_) for o in instruction.operands[1:3])
    c = emitter.read(instruction.operands[3], selector)
    zero = emitter.constant(0, "f4" if selector == "f32" else "i4")
    emitter.write(instruction.operands[0], f"select({c} >= {zero}, {a}, {b})", type_)


def _nothing(emitter: Emitter, instruction: Instruction) -> None:
    """Hints without an effect that the emulator could see."""


ARITHMETIC: dict[str, Handler] = {
    **dict.fromkeys(
        "cnot popc clz bfind brev bfe bfi sad shf and or xor not rem mul24 mad24 selp testp".split(),
        _by_template,
    ),
    **dict.fromkeys("add sub mul mad div min max abs neg".split(), _arithmetic),
    **dict.fromkeys(("addc", "subc", "madc"), _with_carry),
    **dict.fromkeys("sqrt rsqrt rcp ex2 lg2 sin cos tanh copysign".split(), float_operation),
    **dict.fromkeys(("shl", "shr"), _shift),
    **dict.fromkeys(("dp4a", "dp2a"), _dot),
    **dict.fromkeys(
        "nanosleep prefetch prefetchu discard applypriority pmevent griddepcontrol".split(), _nothing
    ),
    "fma": fused_multiply_add,
    "lop3": _lop3,
    "prmt": _prmt,
    "mov": _move,
    "setp": _setp,
    "set": _set,
    "slct": _slct,
    **CONVERSIONS,
}
