"""Logic, comparisons and selections of machine code, in the emulator's instructions."""

from __future__ import annotations

from collections.abc import Sequence

from mctskernel.profiling.emulator.ptx import Immediate, Register
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
    parts = x.modifiers
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
            value = _extended(x, name, kind, left, right, value=value, low=x.predicate(truths[1]))
    _combine(x, first, second, value, other=x.predicate(truths[0]), parts=parts)


def _extended(
    x: Lowering, name: str, kind: str, left: Value, right: Value, *, value: Register, low: Predicate
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


def _combine(
    x: Lowering, first: Operand, second: Operand, value: Predicate, *, other: Predicate, parts: Sequence[str]
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
    if "64" in x.modifiers:
        chosen = x.temporary("b64", "selp.b64", x.wide_source(a), x.wide_source(b), x.predicate(truth))
        x.define_wide(target, chosen)
    else:
        x.define(target, "selp.b32", x.source(a), x.source(b), x.predicate(truth))


def _permute(x: Lowering, operands: Operands) -> None:
    target, a, selector, b = operands
    if x.modifiers:
        opaque_words(1)(x, operands)
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
    kind = "u32" if "U32" in x.modifiers else "s32"
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
    byte = next((int(p[1]) for p in x.modifiers if p in {"B0", "B1", "B2", "B3"}), 0)
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


LOGIC_RULES: dict[str, Rule] = {
    **with_uniform_twins(
        {
            "LOP3": _logic,
            "PLOP3": _predicate_logic,
            "ISETP": _compare,
            "SEL": _select,
            "PRMT": _permute,
            "SGXT": _sign_extend,
            "BMSK": _bit_mask,
        }
    ),
    "R2P": _to_predicates,
    "P2R": _from_predicates,
    "LOP": opaque_words(1),
}
