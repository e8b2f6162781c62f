"""Floating-point instructions as generated text."""

from __future__ import annotations

from mctskernel.profiling.emulator.codegen import Emitter
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


def _packed(emitter: Emitter, instruction: Instruction, template: str, modifiers: set[str]) -> None:
    kind = instruction.parts[-1][:-2]
    both = [
        emitter.temporary(f"halves({emitter.read(o, 'b32')}, {kind!r})") for o in instruction.operands[1:]
    ]
    results = []
    for i in range(2):
        text = _fill(emitter, template, [f"{pair_}[{i}]" for pair_ in both], "f4")
        results.append(narrowed(clamped(text, modifiers), kind))
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


def flushed(text: str, modifiers: set[str]) -> str:
    return f"flush({text})" if "ftz" in modifiers else text


def clamped(text: str, modifiers: set[str]) -> str:
    if "relu" in modifiers:
        text = f"relu({text})"
    return f"saturate({text})" if "sat" in modifiers else text


def narrowed(text: str, kind: str) -> str:
    return f"float_to_half({text})" if kind == "f16" else f"float_to_bfloat({text})"


def finish(emitter: Emitter, text: str, type_: str, modifiers: set[str]) -> None:
    text = clamped(text, modifiers)
    if type_ in ("f16", "bf16"):
        emitter.write(emitter.instruction.operands[0], narrowed(text, type_), type_)
        return
    emitter.write(emitter.instruction.operands[0], flushed(text, modifiers), type_)


def fused_multiply_add(emitter: Emitter, instruction: Instruction) -> None:
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
            results.append(narrowed(clamped(_narrow_fma(parts, kind), modifiers), kind))
        emitter.write(instruction.operands[0], f"join({results[0]}, {results[1]})", "b32")
    else:
        raise emitter.unsupported()


def _narrow_fma(parts: list[str], kind: str) -> str:
    """The sum in f32 rounded to odd. It is exact in f64 as far as f16 can tell; bf16 has exponents far apart."""
    a, b, c = parts
    return f"odd32({a} * {b} + {c})" if kind == "f16" else f"odd32(odd_sum({a} * {b}, {c}))"


def _modifiers(emitter: Emitter, known: str) -> set[str]:
    """The opcode's modifiers; raises on one that the table does not name."""
    found = set(emitter.instruction.parts[1:])
    strange = {m for m in found if m not in known.split() and m not in SIZES}
    if strange:
        raise emitter.unsupported("." + ", .".join(sorted(strange)))
    return found
