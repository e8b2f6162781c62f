"""Floating-point and tensor instructions of machine code: single precision is computed, the rest is opaque.

Single precision is what ptxas divides integers with; the other types never decide an address in practice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mctskernel.profiling.emulator.ptx import Immediate
from mctskernel.profiling.machine_code.lowering import (
    FALSE,
    TRUE,
    Lowering,
    Rule,
    opaque_words,
)
from mctskernel.profiling.machine_code.operands import ImmediateOperand, Operand, RegisterOperand

Operands = Sequence[Operand]


def _rounding(x: Lowering) -> str:
    """The emulator's spelling of an opcode's rounding and flushing."""
    parts = x.machine.opcode.split(".")
    mode = next((p.lower() for p in parts if p in {"RM", "RP", "RZ"}), "rn")
    return f".{mode}" + (".ftz" if "FTZ" in parts else "") + (".sat" if "SAT" in parts else "")


def _operation(name: str) -> Rule:
    def rule(x: Lowering, operands: Operands) -> None:
        if any(map(_odd, operands)):
            opaque_words(1)(x, operands)
            return
        sources = [x.float_source(o) for o in operands[1:] if not _is_predicate(o)]
        x.define(operands[0], f"{name}{_rounding(x)}.f32", *sources)

    return rule


def _odd(operand: Operand) -> bool:
    """Whether an operand is neither a whole register nor a literal nor a constant."""
    return isinstance(operand, RegisterOperand) and bool(operand.view)


def _is_predicate(operand: Operand) -> bool:
    return isinstance(operand, RegisterOperand) and operand.is_predicate


_COMPARISONS = {
    **{
        name: name.lower()
        for name in ("EQ", "NE", "LT", "LE", "GT", "GE", "EQU", "NEU", "LTU", "LEU", "GTU", "GEU")
    },
    "NUM": "num",
    "NAN": "nan",
}


def _compare(x: Lowering, operands: Operands) -> None:
    """`FSETP.cmp.bool d, e, a, b, P`."""
    parts = x.machine.opcode.split(".")
    name = next((_COMPARISONS[p] for p in parts if p in _COMPARISONS), "")
    first, second, a, b, other = operands
    how = next((p.lower() for p in parts if p in {"AND", "OR", "XOR"}), "and")
    if not name:
        x.opaque(*filter(None, (x.target(first), x.target(second))))
        return
    truth = x.temporary("pred", f"setp.{name}.f32", x.float_source(a), x.float_source(b))
    combined = x.predicate(other)
    plain = combined == (TRUE if how == "and" else FALSE)
    for operand, value in ((first, truth), (second, None)):
        if isinstance(operand, RegisterOperand) and operand.index is None:
            continue
        result = value if value is not None else x.temporary("pred", "not.pred", truth)
        if plain:
            x.define(operand, "mov.pred", result)
        else:
            x.define(operand, f"{how}.pred", result, combined)


def _select(x: Lowering, operands: Operands) -> None:
    target, a, b, truth = operands
    x.define(target, "selp.b32", x.float_source(a), x.float_source(b), x.predicate(truth))


def _extremum(x: Lowering, operands: Operands) -> None:
    target, a, b, truth = operands[:4]
    chosen = x.predicate(truth)
    first, second = x.float_source(a), x.float_source(b)
    if isinstance(chosen, Immediate):
        x.define(target, f"{'min' if chosen.value else 'max'}.f32", first, second)
        return
    low = x.temporary("b32", "min.f32", first, second)
    high = x.temporary("b32", "max.f32", first, second)
    x.define(target, "selp.b32", low, high, chosen)


_FUNCTIONS = {
    "RCP": "rcp",
    "RSQ": "rsqrt",
    "SQRT": "sqrt",
    "EX2": "ex2",
    "LG2": "lg2",
    "SIN": "sin",
    "COS": "cos",
    "TANH": "tanh",
}


def _special_function(x: Lowering, operands: Operands) -> None:
    parts = x.machine.opcode.split(".")
    name = next((_FUNCTIONS[p] for p in parts if p in _FUNCTIONS), "")
    if not name or {"F16", "F16x2", "BF16_V2", "BF16"} & set(parts):
        opaque_words(1)(x, operands)
    else:
        x.define(operands[0], f"{name}.approx.f32", x.float_source(operands[1]))


_NARROW = frozenset(("F64", "F16", "BF16", "U8", "S8", "U16", "S16"))


def _integer_type(x: Lowering) -> str:
    """The integer type of a conversion, `s32` where none is named."""
    return next((p.lower() for p in x.modifiers if p in {"U32", "S32", "U64", "S64"}), "s32")


def _from_integer(x: Lowering, operands: Operands) -> None:
    """`I2F.U64.RP d, a`, `I2FP.F32.U32 d, a`."""
    if _NARROW & set(x.modifiers):
        opaque_words(2 if "F64" in x.modifiers else 1)(x, operands)
        return
    kind = _integer_type(x)
    mode = next((p.lower() for p in x.modifiers if p in {"RM", "RP", "RZ"}), "rn")
    if kind.endswith("64"):
        # By way of double precision, which is off by its last place at most: divisions allow for more.
        double = x.temporary("f64", f"cvt.rn.f64.{kind}", x.wide_source(operands[1]))
        x.define(operands[0], f"cvt.{mode}.f32.f64", double)
    else:
        x.define(operands[0], f"cvt.{mode}.f32.{kind}", x.source(operands[1]))


def _to_integer(x: Lowering, operands: Operands) -> None:
    """`F2I.FTZ.U32.F32.TRUNC.NTZ d, a`."""
    kind = _integer_type(x)
    wide = kind.endswith("64")
    if _NARROW & set(x.modifiers):
        opaque_words(2 if wide else 1)(x, operands)
        return
    mode = next((m for name, m in _INTEGER_ROUNDING.items() if name in x.modifiers), "rni")
    opcode = f"cvt.{mode}{'.ftz' if 'FTZ' in x.modifiers else ''}.{kind}.f32"
    source = x.float_source(operands[1])
    if wide:
        x.define_wide(operands[0], x.temporary("b64", opcode, source))
    else:
        x.define(operands[0], opcode, source)


_INTEGER_ROUNDING = {"TRUNC": "rzi", "FLOOR": "rmi", "CEIL": "rpi"}


def _halves(x: Lowering, operands: Operands) -> None:
    """`HFMA2 d, -RZ, RZ, high, low` is how ptxas moves a constant when the other pipes are busy."""
    if len(operands) == 5 and all(map(_is_zero, operands[1:3])):
        high, low = operands[3:]
        if isinstance(high, ImmediateOperand) and isinstance(low, ImmediateOperand):
            kind = "BF16_V2" in x.machine.opcode
            word = _half(high, brain=kind) << 16 | _half(low, brain=kind)
            x.define(operands[0], "mov.b32", Immediate(word, "int"))
            return
    opaque_words(1)(x, operands)


def _half(operand: ImmediateOperand, *, brain: bool) -> int:
    number = ImmediateOperand(float(operand.value))
    return number.bits(4) >> 16 if brain else number.bits(2)


def _is_zero(operand: Operand) -> bool:
    return isinstance(operand, RegisterOperand) and operand.index is None


def _comparison_of_data(x: Lowering, operands: Operands) -> None:
    x.opaque(*[r for o in operands[:2] if _is_predicate(o) and (r := x.target(o)) is not None])


def _conversion(x: Lowering, operands: Operands) -> None:
    """`F2F.F64.F32` and its kin."""
    opaque_words(2 if re.match(r"F2F(\.\w+)*?\.F64\.", x.machine.opcode) else 1)(x, operands)


def _matrix(x: Lowering, operands: Operands) -> None:
    """`HMMA` and its kin: accumulators of 16 x 8 take four registers in 32 bits, two in 16, twice that in 64."""
    opcode = x.machine.opcode
    words = 2 if re.match(r"HMMA\.\d+\.F16(\.|$)", opcode) else 4
    if opcode.startswith("DMMA"):
        words = 4 if ".884" in opcode else 8
    if ".8816" in opcode or ".8832" in opcode or ".88128" in opcode:
        words = 2
    opaque_words(words)(x, operands)


def _warpgroup_matrix(x: Lowering, operands: Operands) -> None:
    """`HGMMA.64xNxK.F32 d, ...`: N / 2 registers in 32 bits, N / 4 in 16."""
    shape = re.search(r"\.64x(\d+)x\d+", x.machine.opcode)
    if shape is None:
        raise x.unknown()
    half = ".F16" in x.machine.opcode.partition(shape[0])[2][:5]
    opaque_words(int(shape[1]) // (4 if half else 2))(x, operands)


FLOAT_RULES: dict[str, Rule] = {
    **{
        f"{u}{name}": rule
        for u in ("", "U")
        for name, rule in {
            "FADD": _operation("add"),
            "FMUL": _operation("mul"),
            "FFMA": _operation("fma"),
            "FSETP": _compare,
            "FSEL": _select,
            "FMNMX": _extremum,
            "I2F": _from_integer,
            "I2FP": _from_integer,
            "F2I": _to_integer,
        }.items()
    },
    "FADD32I": _operation("add"),
    "FMUL32I": _operation("mul"),
    "FFMA32I": _operation("fma"),
    "MUFU": _special_function,
    **dict.fromkeys(("HFMA2", "HADD2", "HMUL2"), _halves),
    **dict.fromkeys(
        [
            "FRND",
            "FSWZADD",
            "F2FP",
            "F2IP",
            "HSET2",
            "HMNMX2",
            "VHMNMX",
            "FSET",
            "FCHK",
            "FMNMX3",
            "HADD2_32",
            "UF2FP",
            "UFRND",
            "HFMA2_32I",
        ],
        opaque_words(1),
    ),
    **dict.fromkeys(["FADD2", "FMUL2", "FFMA2", "DADD", "DMUL", "DFMA", "DMNMX", "DSET"], opaque_words(2)),
    **dict.fromkeys(["DSETP", "HSETP2"], _comparison_of_data),
    "F2F": _conversion,
    **dict.fromkeys(["HMMA", "IMMA", "DMMA", "BMMA", "QMMA", "OMMA"], _matrix),
    **dict.fromkeys(["HGMMA", "IGMMA", "QGMMA", "BGMMA"], _warpgroup_matrix),
}
