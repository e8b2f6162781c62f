"""What the integer arithmetic of machine code computes, in the emulator's instructions.

The semantics of operands that NVIDIA doesn't document (carries of IADD3, the words of SHF and LEA) are as the code of
64-bit arithmetic that ptxas writes needs them to be.
"""

from __future__ import annotations

from collections.abc import Sequence

from mctskernel.profiling.emulator.ptx import Immediate, Register, Vector
from mctskernel.profiling.emulator.ptx import Instruction as Lowered
from mctskernel.profiling.emulator.ptx import Operand as Value
from mctskernel.profiling.machine_code.lowering import (
    FALSE,
    TRUE,
    ZERO,
    Lowering,
    Predicate,
    Rule,
    leading_predicates,
    opaque_words,
    with_uniform_twins,
)
from mctskernel.profiling.machine_code.operands import (
    ImmediateOperand,
    Operand,
    RegisterOperand,
)

Operands = Sequence[Operand]


def _add3(x: Lowering, operands: Operands) -> None:
    """`IADD3 d, [carry out, carry out,] a, b, c [, carry in, carry in]`."""
    target, rest = operands[0], list(operands[1:])
    outs = leading_predicates(rest)
    carries = [x.target(o) for o in rest[:outs]]
    sources, ins = rest[outs : outs + 3], rest[outs + 3 :]
    if "64" in x.modifiers:
        _add3_wide(x, target, carries, sources, ins)
        return
    with_carry_in = "X" in x.modifiers
    if any(carries) or with_carry_in:
        _add_with_carries(x, target, carries, sources, ins if with_carry_in else [])
        return
    x.define(target, "mov.b32", _sum(x, sources))


def _sum(x: Lowering, sources: Operands) -> Value:
    """The sum of operands with their signs."""
    total: Value = ZERO
    for source in sorted(sources, key=lambda o: isinstance(o, RegisterOperand) and o.negated):
        if isinstance(source, RegisterOperand) and source.negated and total is not ZERO:
            value = x.plain(source)
            total = total if value is ZERO else x.temporary("b32", "sub.u32", total, value)
            continue
        value = x.source(source)
        if total is ZERO:
            total = value
        elif value != ZERO:
            total = x.temporary("b32", "add.u32", total, value)
    return total


def _add3_wide(
    x: Lowering, target: Operand, carries: list[Register | None], sources: Operands, ins: Operands
) -> None:
    if any(carries) or "X" in x.modifiers or ins:
        raise x.unknown()
    values = [x.wide_source(source) for source in sources]
    total = values[0]
    for value in values[1:]:
        if value != ZERO:
            total = x.temporary("b64", "add.u64", total, value)
    x.define_wide(target, total)


def _add_with_carries(
    x: Lowering, target: Operand, carries: list[Register | None], sources: Operands, ins: Operands
) -> None:
    """A minus is a complement and one more, whose carry says that nothing was borrowed."""
    terms: list[Value] = []
    extra = 0
    for source in sources:
        if isinstance(source, RegisterOperand) and source.index is None and not source.negated:
            terms += [Immediate(0xFFFFFFFF, "int")] if source.inverted else []
        elif isinstance(source, ImmediateOperand):
            terms.append(Immediate(source.bits(), "int"))
        elif getattr(source, "negated", False):
            terms.append(_complement(x, x.plain(source)))
            extra += 1
        else:
            terms.append(x.source(source))
    truths = [x.predicate(o) for o in ins]
    extra += sum(1 for p in truths if p == TRUE)
    truths = [p for p in truths if not isinstance(p, Immediate)]
    outputs = Vector((x.target(target), *carries))
    if not any(outputs.elements):
        return
    x.effect("add_with_carries", outputs, Immediate(extra, "int"), Vector(tuple(terms)), *truths)


def _complement(x: Lowering, value: Value) -> Value:
    if isinstance(value, Immediate):
        return Immediate(~value.value & 0xFFFFFFFF, "int")
    return x.temporary("b32", "not.b32", value)


def _multiply_add(x: Lowering, operands: Operands) -> None:
    """`IMAD d, [carry out,] a, b, c [, carry in]`, of which there is a low, a high and a wide one."""
    parts = x.modifiers
    target, rest = operands[0], list(operands[1:])
    outs = leading_predicates(rest)
    carry = x.target(rest[0]) if outs else None
    a, b, c, *ins = rest[outs:]
    signed = "U32" not in parts
    if "WIDE" in parts:
        x.define_wide(target, _wide_multiply_add(x, carry, (a, b, c), ins, signed=signed))
    elif "HI" in parts:
        total = _wide_multiply_add(x, carry, (a, b, c), ins, signed=signed)
        upper = x.temporary("b64", "shr.u64", total, Immediate(32, "int"))
        x.define(target, "cvt.u32.u64", upper)
    elif "X" in parts:
        product = _product(x, a, b)
        before = [p for p in map(x.predicate, ins) if p != FALSE]
        terms = tuple(v for v in (product, x.source(c)) if v != ZERO)
        extra = sum(1 for p in before if p == TRUE)
        truths = [p for p in before if not isinstance(p, Immediate)]
        outputs = Vector((x.target(target), carry))
        x.effect("add_with_carries", outputs, Immediate(extra, "int"), Vector(terms), *truths)
    else:
        product, addend = _product(x, a, b), x.source(c)
        if ZERO in {product, addend}:
            x.define(target, "mov.b32", addend if product == ZERO else product)
        else:
            x.define(target, "add.u32", product, addend)


def _product(x: Lowering, a: Operand, b: Operand) -> Value:
    """The low word of a product; many only move or shift."""
    first, second = x.source(a), x.source(b)
    if isinstance(first, Immediate):
        first, second = second, first
    if ZERO in {first, second}:
        return ZERO
    if isinstance(second, Immediate):
        if second.value == 1:
            return first
        if second.value & (second.value - 1) == 0:
            shift = Immediate(second.value.bit_length() - 1, "int")
            return x.temporary("b32", "shl.b32", first, shift)
    return x.temporary("b32", "mul.lo.u32", first, second)


def _wide_multiply_add(
    x: Lowering,
    carry: Register | None,
    sources: tuple[Operand, Operand, Operand],
    ins: Operands,
    *,
    signed: bool,
) -> Value:
    """A product of 64 bits plus a pair of registers and what was carried; writes the carry out of it."""
    first, second, addend = x.source(sources[0]), x.source(sources[1]), x.wide_source(sources[2])
    product: Value = ZERO
    if ZERO not in {first, second}:
        product = x.temporary("b64", f"mul.wide.{'s32' if signed else 'u32'}", first, second)
    before = [p for p in map(x.predicate, ins) if p != FALSE]
    if carry is None and not before:
        if ZERO in {product, addend}:
            return addend if product == ZERO else product
        return x.temporary("b64", "add.u64", product, addend)
    total, beyond = x.files.temporary("b64"), x.files.temporary("pred")
    extra = sum(1 for p in before if p == TRUE)
    truths = [p for p in before if not isinstance(p, Immediate)]
    both = (Vector((total, beyond)), Immediate(extra, "int"), Vector((product, addend)), *truths)
    x.instructions.append(Lowered("add_with_carries_wide", both, None, x.index))
    if carry is not None:
        x.effect("mov.pred", carry, beyond)
    return total


def _load_effective_address(x: Lowering, operands: Operands) -> None:
    """`LEA d, [carry out,] a, b, [c,] shift [, carry in]`: (a << shift) + b, or its high word with c above a."""
    parts = x.modifiers
    target, rest = operands[0], list(operands[1:])
    outs = leading_predicates(rest)
    carry = x.target(rest[0]) if outs else None
    rest = rest[outs:]
    ins = [o for o in rest if isinstance(o, RegisterOperand) and o.is_predicate]
    rest = [o for o in rest if o not in ins]
    shift = rest.pop()
    amount = shift.bits() & 31 if isinstance(shift, ImmediateOperand) else None
    if amount is None:
        raise x.unknown()
    low, b = x.source(rest[0]), x.source(rest[1])
    if "HI" in parts:
        first = _high_of_shifted(x, low, rest[2] if len(rest) > 2 else None, amount)
    else:
        first = low if not amount else x.temporary("b32", "shl.b32", low, Immediate(amount, "int"))
    truths = [p for p in map(x.predicate, ins) if p != FALSE]
    if carry is None and not truths:
        if b == ZERO:
            x.define(target, "mov.b32", first)
        else:
            x.define(target, "add.u32", first, b)
        return
    extra = sum(1 for p in truths if p == TRUE)
    variables = [p for p in truths if not isinstance(p, Immediate)]
    terms = tuple(v for v in (first, b) if v != ZERO)
    outputs = Vector((x.target(target), carry))
    x.effect("add_with_carries", outputs, Immediate(extra, "int"), Vector(terms), *variables)


def _high_of_shifted(x: Lowering, low: Value, above: Operand | None, amount: int) -> Value:
    """The high word of {above, low} << amount; without `above`, of the sign-extended low word."""
    back = Immediate(32 - amount, "int")
    if above is None:
        return (
            x.temporary("b32", "shr.s32", low, back)
            if amount
            else x.temporary("b32", "shr.s32", low, Immediate(31, "int"))
        )
    high = x.source(above)
    if not amount:
        return high
    below = x.temporary("b32", "shr.u32", low, back) if low != ZERO else ZERO
    if high == ZERO:
        return below
    shifted = x.temporary("b32", "shl.b32", high, Immediate(amount, "int"))
    return shifted if below == ZERO else x.temporary("b32", "or.b32", shifted, below)


def _shift(x: Lowering, operands: Operands) -> None:
    """`SHF d, low, amount, high`: a word of the two, shifted."""
    parts = x.modifiers
    target, low, amount, high = operands
    left, upper = "L" in parts, "HI" in parts
    kind = next((part for part in parts if part in {"U32", "S32", "U64", "S64"}), "U32")
    signed, wide = kind[0] == "S", kind[1:] == "64"
    count = x.source(amount)
    if "W" in parts and not isinstance(count, Immediate):
        count = x.temporary("b32", "and.b32", count, Immediate(63 if wide else 31, "int"))
    if left and not upper:
        x.define(target, "shl.b32", x.source(low), count)
    elif not left and upper:
        x.define(target, f"shr.{'s' if signed else 'u'}32", x.source(high), count)
    else:
        first, second = x.source(low), x.source(high)
        both = x.temporary("b64", "mov.b64", Vector((first, second)))
        opcode = "shl.b64" if left else f"shr.{'s' if signed else 'u'}64"
        moved = x.temporary("b64", opcode, both, count)
        if left:
            moved = x.temporary("b64", "shr.u64", moved, Immediate(32, "int"))
        x.define(target, "cvt.u32.u64", moved)


def _minimum_or_maximum(x: Lowering, value: Value, other: Value, truth: Predicate, kind: str) -> Value:
    """The minimum where the predicate holds."""
    if isinstance(truth, Immediate):
        return x.temporary("b32", f"{'min' if truth.value else 'max'}.{kind}", value, other)
    low = x.temporary("b32", f"min.{kind}", value, other)
    high = x.temporary("b32", f"max.{kind}", value, other)
    return x.temporary("b32", "selp.b32", low, high, truth)


def _extremum(x: Lowering, operands: Operands) -> None:
    """`IMNMX d, a, b, P`; with an addition first, `VIADDMNMX d, a, b, c, P`; of three, `VIMNMX3`."""
    parts = x.modifiers
    if {"16", "U16x2", "S16x2", "U16", "S16"} & set(parts):
        opaque_words(1)(x, operands)
        return
    kind = "u32" if "U32" in parts else "s32"
    truths = [o for o in operands[1:] if isinstance(o, RegisterOperand) and o.is_predicate]
    sources = [o for o in operands[1:] if o not in truths]
    if len(truths) != 1:
        opaque_words(1)(x, operands)
        return
    truth = x.predicate(truths[0])
    if "ADDMNMX" in x.machine.mnemonic:
        value: Value = _sum(x, sources[:2])
        sources = sources[2:]
    else:
        value, sources = x.source(sources[0]), sources[1:]
    for source in sources:
        value = _minimum_or_maximum(x, value, x.source(source), truth, kind)
    if "RELU" in parts:
        value = x.temporary("b32", "max.s32", value, ZERO)
    x.define(operands[0], "mov.b32", value)


def _unary(opcode: str) -> Rule:
    def rule(x: Lowering, operands: Operands) -> None:
        x.define(operands[0], opcode, x.source(operands[-1]))

    return rule


def _find_leading_one(x: Lowering, operands: Operands) -> None:
    parts = x.modifiers
    kind = "u32" if "U32" in parts else "s32"
    opcode = f"bfind.shiftamt.{kind}" if "SH" in parts else f"bfind.{kind}"
    source = operands[leading_predicates(operands) + 1]
    target = operands[leading_predicates(operands)]
    if leading_predicates(operands):
        x.opaque(*filter(None, [x.target(operands[0])]))
    if isinstance(source, RegisterOperand) and source.is_predicate:
        source = operands[-1]
    x.define(target, opcode, x.source(source))


ARITHMETIC_RULES: dict[str, Rule] = {
    **with_uniform_twins(
        {
            "IADD3": _add3,
            "VIADD": lambda x, operands: x.define(operands[0], "mov.b32", _sum(x, operands[1:])),
            "IMAD": _multiply_add,
            "LEA": _load_effective_address,
            "SHF": _shift,
            "IMNMX": _extremum,
            "VIMNMX": _extremum,
            "VIMNMX3": _extremum,
            "VIADDMNMX": _extremum,
            "IABS": _unary("abs.s32"),
            "POPC": _unary("popc.b32"),
            "BREV": _unary("brev.b32"),
            "FLO": _find_leading_one,
        }
    ),
    "IADD": _add3,
    **dict.fromkeys(
        ("IDP", "IDP4A", "I2I", "I2IP", "IMUL", "SHL", "SHR", "VABSDIFF", "VABSDIFF4", "VHMNMX"),
        opaque_words(1),
    ),
}
