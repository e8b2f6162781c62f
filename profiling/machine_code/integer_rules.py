"""What the integer, logic, move and warp instructions of machine code compute, in the emulator's instructions.

The semantics of operands that NVIDIA doesn't document (carries of IADD3, the words of SHF and LEA) are as the code of
64-bit arithmetic that ptxas writes needs them to be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mctskernel.profiling.emulator.ptx import (
    Immediate,
    Pair,
    Register,
    Vector,
)
from mctskernel.profiling.emulator.ptx import (
    Instruction as Lowered,
)
from mctskernel.profiling.emulator.ptx import (
    Operand as Value,
)
from mctskernel.profiling.machine_code.lowering import (
    FALSE,
    TRUE,
    ZERO,
    Lowering,
    Predicate,
    Rule,
    leading_predicates,
    name_of,
)
from mctskernel.profiling.machine_code.operands import (
    ConstantOperand,
    ImmediateOperand,
    Operand,
    RegisterOperand,
)

Operands = Sequence[Operand]


def _modifiers(x: Lowering) -> list[str]:
    return x.machine.opcode.split(".")[1:]


def _move(x: Lowering, operands: Operands) -> None:
    if "64" in _modifiers(x):
        x.define_wide(operands[0], x.wide_source(operands[1]))
    else:
        x.define(operands[0], "mov.b32", x.source(operands[1]))


def _special_register(x: Lowering, operands: Operands) -> None:
    target, name = operands[0], name_of(operands[1])
    wide = x.machine.mnemonic == "CS2R" and "32" not in _modifiers(x)
    if name == "SRZ":
        value: Value = ZERO
    elif name in _SPECIAL:
        value = x.temporary("b32", "special.b32", Immediate(_SPECIAL[name], "int"))
    else:
        raise x.unknown()
    if wide:
        extended = value if value is ZERO else x.temporary("b64", "cvt.u64.u32", value)
        x.define_wide(target, extended)
    else:
        x.define(target, "mov.b32", value)


SPECIAL_REGISTERS = (
    *(f"{name}.{axis}" for name in ("tid", "ctaid", "nctaid", "ntid") for axis in "xyz"),
    "laneid",
    "warpid",
    "smid",
    "clock",
    "zero",
    "shared window",
    "local window",
    *(f"lanemask_{name}" for name in ("eq", "le", "lt", "ge", "gt")),
    "one",
)
_NAMES = {
    **{f"SR_{name.upper()}.{axis.upper()}": f"{name}.{axis}" for name in ("tid", "ctaid") for axis in "xyz"},
    **{f"SR_NCTAID.{axis.upper()}": f"nctaid.{axis}" for axis in "xyz"},
    "SR_LANEID": "laneid",
    "SR_VIRTID": "warpid",
    "SR_VIRTUALSMID": "smid",
    "SR_SMID": "smid",
    **dict.fromkeys(("SR_CLOCKLO", "SR_CLOCKHI", "SR_GLOBALTIMERLO", "SR_GLOBALTIMERHI"), "clock"),
    **dict.fromkeys(("SR_CgaCtaId", "SR_SWINLO", "SR_LWINLO", "SR_CgaCtaId.X", "SR_REGALLOC"), "zero"),
    "SR_CgaSize": "one",
    "SR_SWINHI": "shared window",
    "SR_LWINHI": "local window",
    "SR_EQMASK": "lanemask_eq",
    "SR_LTMASK": "lanemask_lt",
    "SR_LEMASK": "lanemask_le",
    "SR_GTMASK": "lanemask_gt",
    "SR_GEMASK": "lanemask_ge",
}
_SPECIAL = {name: SPECIAL_REGISTERS.index(own) for name, own in _NAMES.items()}


def _constant_load(x: Lowering, operands: Operands) -> None:
    parts = _modifiers(x)
    if "64" in parts:
        x.define_wide(operands[0], x.wide_source(operands[1]))
    elif "128" in parts:
        _load_four_words(x, operands[0], operands[1])
    elif {"U8", "S8", "U16", "S16"} & set(parts):
        kind = next(part for part in parts if part in {"U8", "S8", "U16", "S16"})
        word = x.source(operands[1])
        size = kind[1:]
        opcode = f"cvt.{'s32' if kind[0] == 'S' else 'u32'}.{kind[0].lower()}{size}"
        x.define(operands[0], opcode, word)
    else:
        x.define(operands[0], "mov.b32", x.source(operands[1]))


def _load_four_words(x: Lowering, target: Operand, place: Operand) -> None:
    if not isinstance(target, RegisterOperand) or not isinstance(place, ConstantOperand):
        raise x.unknown()
    if target.index is not None:
        for half in range(2):
            words = replace(target, index=target.index + 2 * half)
            x.define_wide(words, x.constant(replace(place, offset=place.offset + 8 * half), "b64"))


def _add3(x: Lowering, operands: Operands) -> None:
    """`IADD3 d, [carry out, carry out,] a, b, c [, carry in, carry in]`."""
    target, rest = operands[0], list(operands[1:])
    outs = leading_predicates(rest)
    carries = [x.target(o) for o in rest[:outs]]
    sources, ins = rest[outs : outs + 3], rest[outs + 3 :]
    if "64" in _modifiers(x):
        _add3_wide(x, target, carries, sources, ins)
        return
    with_carry_in = "X" in _modifiers(x)
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
    if any(carries) or "X" in _modifiers(x) or ins:
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
    parts = _modifiers(x)
    target, rest = operands[0], list(operands[1:])
    outs = leading_predicates(rest)
    carry = x.target(rest[0]) if outs else None
    a, b, c, *ins = rest[outs:]
    signed = "U32" not in parts
    if "WIDE" in parts:
        _multiply_add_wide(x, target, carry, (a, b, c), ins, signed=signed)
    elif "HI" in parts:
        if carry is not None or "X" in parts:
            x.opaque(*filter(None, (x.target(target), carry)))
            return
        _multiply_add_high(x, target, (a, b, c), signed=signed)
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
        if product == ZERO or addend == ZERO:
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


def _multiply_add_high(
    x: Lowering, target: Operand, sources: tuple[Operand, Operand, Operand], *, signed: bool
) -> None:
    """The high word of a product of 64 bits plus a pair of registers."""
    first, second, addend = x.source(sources[0]), x.source(sources[1]), x.wide_source(sources[2])
    kind = "s32" if signed else "u32"
    if ZERO in {first, second}:
        whole = addend
    elif addend == ZERO:
        x.define(target, f"mul.hi.{kind}", first, second)
        return
    else:
        product = x.temporary("b64", f"mul.wide.{kind}", first, second)
        whole = x.temporary("b64", "add.u64", product, addend)
    upper = x.temporary("b64", "shr.u64", whole, Immediate(32, "int"))
    x.define(target, "cvt.u32.u64", upper)


def _multiply_add_wide(
    x: Lowering,
    target: Operand,
    carry: Register | None,
    sources: tuple[Operand, Operand, Operand],
    ins: Operands,
    *,
    signed: bool,
) -> None:
    a, b, c = sources
    first, second, addend = x.source(a), x.source(b), x.wide_source(c)
    kind = "s32" if signed else "u32"
    before = [p for p in map(x.predicate, ins) if p != FALSE]
    product: Value = ZERO
    if ZERO not in {first, second}:
        product = x.temporary("b64", f"mul.wide.{kind}", first, second)
    if carry is not None or before:
        total, beyond = x.files.temporary("b64"), x.files.temporary("pred")
        extra = sum(1 for p in before if p == TRUE)
        truths = [p for p in before if not isinstance(p, Immediate)]
        both = (Vector((total, beyond)), Immediate(extra, "int"), Vector((product, addend)), *truths)
        x.instructions.append(Lowered("add_with_carries_wide", both, None, x.index))
        x.define_wide(target, total)
        if carry is not None:
            x.effect("mov.pred", carry, beyond)
        return
    if product == ZERO or addend == ZERO:
        x.define_wide(target, addend if product == ZERO else product)
    else:
        x.define_wide(target, x.temporary("b64", "add.u64", product, addend))


def _load_effective_address(x: Lowering, operands: Operands) -> None:
    """`LEA d, [carry out,] a, b, [c,] shift [, carry in]`: (a << shift) + b, or its high word with c above a."""
    parts = _modifiers(x)
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
    parts = _modifiers(x)
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


def _logic(x: Lowering, operands: Operands) -> None:
    """`LOP3.LUT [P,] d, a, b, c, table, P`: the predicate says whether any bit is set."""
    outs = leading_predicates(operands)
    truth = x.target(operands[0]) if outs else None
    target, a, b, c, table, *ins = operands[outs:]
    if not isinstance(table, ImmediateOperand):
        raise x.unknown()
    sources = (x.source(a), x.source(b), x.source(c))
    value = x.temporary("b32", "logic3", *sources, Immediate(table.bits() & 255, "int"))
    if truth is not None:
        also = x.predicate(ins[0]) if ins else FALSE
        if also in (FALSE, TRUE):
            x.effect("setp.ne.u32", truth, value, ZERO)
        else:
            x.effect("setp.ne.or.u32", truth, value, ZERO, also)
    x.define(target, "mov.b32", value)


def _predicate_logic(x: Lowering, operands: Operands) -> None:
    """`PLOP3.LUT d, e, a, b, c, table, table`."""
    first, second = x.target(operands[0]), x.target(operands[1])
    sources = [x.predicate(o) for o in operands[2:5]]
    tables = [o.bits() & 255 for o in operands[5:] if isinstance(o, ImmediateOperand)]
    if first is not None:
        x.effect("truth3", first, *sources, Immediate(tables[0], "int"))
    if second is not None:
        x.effect("truth3", second, *sources, Immediate(tables[1], "int"))


_COMPARISONS = {"EQ": "eq", "NE": "ne", "LT": "lt", "LE": "le", "GT": "gt", "GE": "ge"}


def _compare(x: Lowering, operands: Operands) -> None:
    """`ISETP.cmp.bool d, e, a, b, P [, P of the low words]`."""
    parts = _modifiers(x)
    kind = "u32" if "U32" in parts else "s32"
    name = next((_COMPARISONS[part] for part in parts if part in _COMPARISONS), "")
    first, second, a, b, *truths = operands
    if not name:
        if "F" in parts or "T" in parts:
            value: Predicate = TRUE if "T" in parts else FALSE
        else:
            raise x.unknown()
    else:
        left, right = x.source(a), x.source(b)
        value = x.temporary("pred", f"setp.{name}.{kind}", left, right)
        if "EX" in parts:
            value = _extended(x, name, kind, left, right, value, x.predicate(truths[1]))
    _combine(x, first, second, value, x.predicate(truths[0]), parts)


def _extended(  # noqa: PLR0917
    x: Lowering, name: str, kind: str, left: Value, right: Value, value: Register, low: Predicate
) -> Register:
    """A comparison of 64 bits, of whose low words the same comparison is known."""
    if name == "eq":
        return x.temporary("pred", "and.pred", value, low)
    if name == "ne":
        return x.temporary("pred", "or.pred", value, low)
    strict = {"lt": "lt", "le": "lt", "gt": "gt", "ge": "gt"}[name]
    beyond = value if strict == name else x.temporary("pred", f"setp.{strict}.{kind}", left, right)
    equal = x.temporary("pred", "setp.eq.u32", left, right)
    decided_below = x.temporary("pred", "and.pred", equal, low)
    return x.temporary("pred", "or.pred", beyond, decided_below)


def _combine(  # noqa: PLR0917
    x: Lowering, first: Operand, second: Operand, value: Predicate, other: Predicate, parts: Sequence[str]
) -> None:
    """Write a comparison, and its opposite, combined with another truth value."""
    how = next((part.lower() for part in parts if part in {"AND", "OR", "XOR"}), "and")
    targets = (x.target(first), x.target(second))
    for target, truth in zip(
        targets, (value, _opposite(x, value) if targets[1] is not None else value), strict=True
    ):
        if target is None:
            continue
        if other == (TRUE if how == "and" else FALSE):
            x.effect("mov.pred", target, truth)
        else:
            x.effect(f"{how}.pred", target, truth, other)


def _opposite(x: Lowering, value: Predicate) -> Predicate:
    if isinstance(value, Immediate):
        return FALSE if value.value else TRUE
    return x.temporary("pred", "not.pred", value)


def _select(x: Lowering, operands: Operands) -> None:
    target, a, b, truth = operands[:4]
    if "64" in _modifiers(x):
        chosen = x.temporary("b64", "selp.b64", x.wide_source(a), x.wide_source(b), x.predicate(truth))
        x.define_wide(target, chosen)
    else:
        x.define(target, "selp.b32", x.source(a), x.source(b), x.predicate(truth))


def _minimum_or_maximum(x: Lowering, value: Value, other: Value, truth: Predicate, kind: str) -> Value:
    """The minimum where the predicate holds."""
    if isinstance(truth, Immediate):
        return x.temporary("b32", f"{'min' if truth.value else 'max'}.{kind}", value, other)
    low = x.temporary("b32", f"min.{kind}", value, other)
    high = x.temporary("b32", f"max.{kind}", value, other)
    return x.temporary("b32", "selp.b32", low, high, truth)


def _extremum(x: Lowering, operands: Operands) -> None:
    """`IMNMX d, a, b, P`; with an addition first, `VIADDMNMX d, a, b, c, P`; of three, `VIMNMX3`."""
    parts = _modifiers(x)
    if {"16", "U16x2", "S16x2", "U16", "S16"} & set(parts):
        _opaque_word(x, operands)
        return
    kind = "u32" if "U32" in parts else "s32"
    truths = [o for o in operands[1:] if isinstance(o, RegisterOperand) and o.is_predicate]
    sources = [o for o in operands[1:] if o not in truths]
    if len(truths) != 1:
        _opaque_word(x, operands)
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


def _opaque_word(x: Lowering, operands: Operands) -> None:
    x.opaque(*filter(None, [x.target(o) for o in operands[: leading_predicates(operands) + 1]]))


def _unary(opcode: str) -> Rule:
    def rule(x: Lowering, operands: Operands) -> None:
        x.define(operands[0], opcode, x.source(operands[-1]))

    return rule


def _find_leading_one(x: Lowering, operands: Operands) -> None:
    parts = _modifiers(x)
    kind = "u32" if "U32" in parts else "s32"
    opcode = f"bfind.shiftamt.{kind}" if "SH" in parts else f"bfind.{kind}"
    source = operands[leading_predicates(operands) + 1]
    target = operands[leading_predicates(operands)]
    if leading_predicates(operands):
        x.opaque(*filter(None, [x.target(operands[0])]))
    if isinstance(source, RegisterOperand) and source.is_predicate:
        source = operands[-1]
    x.define(target, opcode, x.source(source))


def _permute(x: Lowering, operands: Operands) -> None:
    target, a, selector, b = operands
    if _modifiers(x):
        _opaque_word(x, operands)
    elif _keeps_upper_half(target, selector, b):
        # A register of 16 bits in the low half of this one: who reads it has no use for the upper half.
        x.define(target, "prmt.b32", x.source(a), ZERO, x.source(selector))
    else:
        x.define(target, "prmt.b32", x.source(a), x.source(b), x.source(selector))


def _keeps_upper_half(target: Operand, selector: Operand, b: Operand) -> bool:
    return (
        isinstance(target, RegisterOperand)
        and isinstance(b, RegisterOperand)
        and (target.bank, target.index) == (b.bank, b.index)
        and isinstance(selector, ImmediateOperand)
        and selector.bits() >> 8 == 0x76
        and not selector.bits() & 0x44
    )


def _sign_extend(x: Lowering, operands: Operands) -> None:
    """`SGXT d, a, bits`."""
    kind = "u32" if "U32" in _modifiers(x) else "s32"
    x.define(operands[0], f"bfe.{kind}", x.source(operands[1]), ZERO, x.source(operands[2]))


def _bit_mask(x: Lowering, operands: Operands) -> None:
    """`BMSK d, position, width`."""
    ones = x.temporary(
        "b32", "bfi.b32", Immediate(0xFFFFFFFF, "int"), ZERO, x.source(operands[1]), x.source(operands[2])
    )
    x.define(operands[0], "mov.b32", ones)


def _to_predicates(x: Lowering, operands: Operands) -> None:
    """`R2P PR, a, mask`: predicates from the bits of a register."""
    register, mask = operands[1], operands[2]
    if not isinstance(mask, ImmediateOperand):
        raise x.unknown()
    byte = next((int(p[1]) for p in _views(register) if p in {"B0", "B1", "B2", "B3"}), 0)
    word = x.plain(register)
    for bit in range(7):
        if mask.bits() >> bit & 1:
            one = x.temporary("b32", "and.b32", word, Immediate(1 << (bit + 8 * byte), "int"))
            x.effect("setp.ne.u32", x.files.register("P", bit), one, ZERO)


def _views(operand: Operand) -> list[str]:
    return operand.view.split(".") if isinstance(operand, RegisterOperand) else []


def _from_predicates(x: Lowering, operands: Operands) -> None:
    """`P2R d, PR, a, mask`: the predicates as bits of a register."""
    target, _, other, mask = operands
    if not isinstance(mask, ImmediateOperand):
        raise x.unknown()
    byte = next((int(p[1]) for p in _modifiers(x) if p in {"B0", "B1", "B2", "B3"}), 0)
    kept = ~(mask.bits() << 8 * byte) & 0xFFFFFFFF
    word = x.source(other)
    if word != ZERO:
        word = x.temporary("b32", "and.b32", word, Immediate(kept, "int"))
    for bit in range(7):
        if mask.bits() >> bit & 1:
            one = Immediate(1 << (bit + 8 * byte), "int")
            set_ = x.temporary("b32", "selp.b32", one, ZERO, x.files.register("P", bit))
            word = set_ if word == ZERO else x.temporary("b32", "or.b32", word, set_)
    x.define(target, "mov.b32", word)


def _vote(x: Lowering, operands: Operands) -> None:
    """`VOTE.ANY [d,] P, P`: the ballot, and what the vote says."""
    mode = next((p.lower() for p in _modifiers(x) if p in {"ANY", "ALL", "EQ"}), "")
    mode = {"eq": "uni"}.get(mode, mode)
    condition = x.predicate(operands[-1])
    everybody = Immediate(0xFFFFFFFF, "int")
    if not mode:
        raise x.unknown()
    for operand in operands[:-1]:
        if isinstance(operand, RegisterOperand) and operand.is_predicate:
            x.define(operand, f"vote.sync.{mode}.pred", condition, everybody)
        else:
            x.define(operand, "vote.sync.ballot.b32", condition, everybody)


_SHUFFLES = {"UP": "up", "DOWN": "down", "BFLY": "bfly", "IDX": "idx"}


def _shuffle(x: Lowering, operands: Operands) -> None:
    truth, target, value, source, clamp = operands
    mode = next(_SHUFFLES[p] for p in _modifiers(x) if p in _SHUFFLES)
    values = [x.source(o) for o in (value, source, clamp)]
    pair = Pair(x.target(target), x.target(truth))
    x.effect(f"shfl.sync.{mode}.b32", pair, *values, Immediate(0xFFFFFFFF, "int"))


def _reduce_warp(x: Lowering, operands: Operands) -> None:
    parts = _modifiers(x)
    names = {"SUM": "add", "MIN": "min", "MAX": "max", "AND": "and", "OR": "or", "XOR": "xor"}
    operation = next((names[p] for p in parts if p in names), "or")
    kind = "s32" if "S32" in parts else "b32" if operation in {"and", "or", "xor"} else "u32"
    x.define(
        operands[-2], f"redux.sync.{operation}.{kind}", x.source(operands[-1]), Immediate(0xFFFFFFFF, "int")
    )


def _match(x: Lowering, operands: Operands) -> None:
    parts = _modifiers(x)
    outs = leading_predicates(operands)
    truth = x.target(operands[0]) if outs else None
    target, value = operands[outs], operands[outs + 1]
    wide = "U64" in parts or "64" in parts
    source = x.wide_source(value) if wide else x.source(value)
    mode = "all" if "ALL" in parts else "any"
    x.effect(
        f"match.{mode}.sync.b{64 if wide else 32}",
        Pair(x.target(target), truth),
        source,
        Immediate(0xFFFFFFFF, "int"),
    )


def _elect(x: Lowering, operands: Operands) -> None:
    """`ELECT P, d, P`: true of the first lane."""
    lane = x.temporary("b32", "special.b32", Immediate(SPECIAL_REGISTERS.index("laneid"), "int"))
    for operand in operands[:-1]:
        if isinstance(operand, RegisterOperand) and operand.is_predicate:
            x.define(operand, "setp.eq.u32", lane, ZERO)
        else:
            x.define(operand, "mov.b32", Immediate(1, "int"))


def _to_uniform(x: Lowering, operands: Operands) -> None:
    """`R2UR d, a`: all lanes of the warp hold the same."""
    outs = leading_predicates(operands)
    target, source = operands[outs : outs + 2]
    x.define(target, "mov.b32", x.source(source))


def _nothing(x: Lowering, operands: Operands) -> None:
    """Changes no register and touches no memory."""


def _nothing_known(x: Lowering, operands: Operands) -> None:
    _opaque_word(x, operands)


def _uniform_twins(rules: dict[str, Rule]) -> dict[str, Rule]:
    return {**rules, **{f"U{name}": rule for name, rule in rules.items()}}


INTEGER_RULES: dict[str, Rule] = {
    **_uniform_twins(
        {
            "MOV": _move,
            "IADD3": _add3,
            "VIADD": lambda x, o: x.define(o[0], "mov.b32", _sum(x, o[1:])),
            "IMAD": _multiply_add,
            "LEA": _load_effective_address,
            "SHF": _shift,
            "LOP3": _logic,
            "PLOP3": _predicate_logic,
            "ISETP": _compare,
            "SEL": _select,
            "IMNMX": _extremum,
            "VIMNMX": _extremum,
            "VIMNMX3": _extremum,
            "VIADDMNMX": _extremum,
            "IABS": _unary("abs.s32"),
            "POPC": _unary("popc.b32"),
            "BREV": _unary("brev.b32"),
            "FLO": _find_leading_one,
            "PRMT": _permute,
            "SGXT": _sign_extend,
            "BMSK": _bit_mask,
        }
    ),
    "IADD": _add3,
    "MOV32I": _move,
    "S2R": _special_register,
    "S2UR": _special_register,
    "CS2R": _special_register,
    "CS2UR": _special_register,
    "LDC": _constant_load,
    "ULDC": _constant_load,
    "LDCU": _constant_load,
    "R2UR": _to_uniform,
    "UR2R": _to_uniform,
    "R2P": _to_predicates,
    "P2R": _from_predicates,
    "VOTE": _vote,
    "VOTEU": _vote,
    "SHFL": _shuffle,
    "REDUX": _reduce_warp,
    "CREDUX": _reduce_warp,
    "MATCH": _match,
    "ELECT": _elect,
    **dict.fromkeys(
        [
            "CGAERRBAR",
            "NOP",
            "BSSY",
            "BSYNC",
            "BREAK",
            "WARPSYNC",
            "YIELD",
            "DEPBAR",
            "LDGDEPBAR",
            "MEMBAR",
            "ERRBAR",
            "NANOSLEEP",
            "CCTL",
            "CCTLL",
            "PREEXIT",
            "ACQBULK",
            "WARPGROUP",
            "USETMAXREG",
            "BMOV",
            "ENDCOLLECTIVE",
            "UCGABAR_ARV",
            "UCGABAR_WAIT",
            "FENCE",
            "WARPGROUPSET",
            "UTMACCTL",
            "UTMACMDFLUSH",
            "UTMAPF",
            "PMTRIG",
            "BPT",
            "LEPC",
            "RPCMOV",
        ],
        _nothing,
    ),
    **dict.fromkeys(
        ["IDP", "IDP4A", "I2I", "I2IP", "LOP", "IMUL", "SHL", "SHR", "VABSDIFF", "VABSDIFF4", "VHMNMX"],
        _nothing_known,
    ),
}
