"""Memory instructions of machine code: what they access, and what they load into which registers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mctskernel.profiling.emulator.ptx import Immediate, Register, Vector
from mctskernel.profiling.machine_code.lowering import (
    TRUE,
    Lowering,
    Rule,
    leading_predicates,
    opaque_words,
)
from mctskernel.profiling.machine_code.operands import Bank, MemoryOperand, Operand, RegisterOperand

Operands = Sequence[Operand]

_WORDS = {"64": 2, "128": 4}
STACK_POINTER = 1


def _shape(x: Lowering) -> tuple[int, str]:
    """Registers that one lane moves, and the type of each."""
    parts = x.machine.opcode.split(".")[1:]
    for part in parts:
        if part in _WORDS:
            return _WORDS[part], "b32"
        if part in {"U8", "S8", "U16", "S16"}:
            return 1, part.lower()
        if part == "256":
            raise x.unknown()
    return 1, "b32"


def _space(mnemonic: str) -> str:
    return {"G": "global", "S": "shared", "L": "local"}.get(mnemonic[2:3], "generic")


def _spelled(opcode: str, space: str, count: int, type_: str) -> str:
    vector = f".v{count}" if count > 1 else ""
    place = "" if space == "generic" else f".{space}"
    return f"{opcode}{place}{vector}.{type_}"


def _load(x: Lowering, operands: Operands) -> None:
    """`LDG [P,] d, [a] [, P]`."""
    outs = leading_predicates(operands)
    truths = [r for o in operands[:outs] if (r := x.target(o)) is not None]
    target, place = operands[outs : outs + 2]
    count, type_ = _shape(x)
    space = _space(x.machine.mnemonic)
    slots = _stack_slots(x, place, space, count, type_)
    address = x.address(place)
    registers = x.targets(target, count)
    if slots is not None:
        x.effect(_spelled("ld", "local", count, type_), None, address)
        for register, slot in zip(registers or (), slots, strict=False):
            x.effect("mov.b32", register, slot)
    elif registers is None or count == 1:
        x.effect(_spelled("ld", space, count, type_), registers[0] if registers else None, address)
    else:
        x.effect(_spelled("ld", space, count, type_), Vector(registers), address)
    x.opaque(*truths)


def _store(x: Lowering, operands: Operands) -> None:
    """`STG [a], d`."""
    place, value = operands[:2]
    count, type_ = _shape(x)
    space = _space(x.machine.mnemonic)
    slots = _stack_slots(x, place, space, count, type_)
    address = x.address(place)
    values = [
        x.files.register(value.bank, value.index + i)
        if isinstance(value, RegisterOperand) and value.index is not None
        else Immediate(0, "int")
        for i in range(count)
    ]
    x.effect(_spelled("st", space, count, type_), address, Vector(tuple(values)) if count > 1 else values[0])
    for slot, stored in zip(slots or (), values, strict=False):
        x.effect("mov.b32", slot, stored)


def _stack_slots(
    x: Lowering, place: Operand, space: str, count: int, type_: str
) -> tuple[Register, ...] | None:
    """Words at fixed places of the stack frame are registers by another name: that is what spilling is."""
    if space != "local" or not isinstance(place, MemoryOperand) or type_ != "b32":
        return None
    base = place.base
    if (
        base is None
        or base.bank is not Bank.REGISTER
        or base.index != STACK_POINTER
        or place.uniform is not None
    ):
        return None
    return tuple(x.files.register("stack", place.offset + 4 * i) for i in range(count))


_OPERATIONS = {
    "ADD": "add", "MIN": "min", "MAX": "max", "AND": "and", "OR": "or", "XOR": "xor",
    "EXCH": "exch", "CAS": "cas", "CAST": "cas", "INC": "inc", "DEC": "dec", "POPC": "add",
}  # fmt: skip
_FLOATS = {
    "F32": "f32",
    "F64": "f64",
    "F16x2": "f16x2",
    "BF16x2": "bf16x2",
    "BF16_V2": "bf16x2",
    "F16": "f16x2",
}


def _atomic(x: Lowering, operands: Operands) -> None:
    """`ATOMG.E.ADD P, d, [a], b [, c]`, `ATOMS.ADD d, [a], b`."""
    parts = x.machine.opcode.split(".")[1:]
    operation = next((_OPERATIONS[p] for p in parts if p in _OPERATIONS), "")
    if not operation:
        raise x.unknown()
    kind = next((_FLOATS[p] for p in parts if p in _FLOATS), "")
    wide = "64" in parts or "F64" in parts or "U64" in parts or "S64" in parts
    if {"128", "VECTOR"} & set(parts) or any(re.fullmatch(r"v\d|V\d", p) for p in parts):
        raise x.unknown()
    if not kind:
        sign = "s" if "S32" in parts or "S64" in parts else "b" if operation in _BITWISE else "u"
        kind = f"{sign}{64 if wide else 32}"
    outs = leading_predicates(operands)
    truths = [r for o in operands[:outs] if (r := x.target(o)) is not None]
    rest = list(operands[outs:])
    reduction = x.machine.mnemonic in {"RED", "REDG", "REDS", "REDUX"}
    target = None if reduction else rest.pop(0)
    address = x.address(rest.pop(0))
    words = 2 if wide else 1
    values = [_atomic_value(x, rest, i, wide=wide) for i in range(2 if operation == "cas" else 1)]
    if "POPC" in parts:
        values = [Immediate(1, "int")]
    space = {"ATOMS": ".shared", "ATOMG": ".global", "REDG": ".global", "RED": ".global"}.get(
        x.machine.mnemonic, ""
    )
    registers = None if target is None else x.targets(target, words)
    if registers is None:
        x.effect(f"red{space}.{operation}.{kind}", address, *values)
    else:
        place = Vector(registers) if wide else registers[0]
        x.effect(f"atom{space}.{operation}.{kind}", place, address, *values)
    x.opaque(*truths)


_BITWISE = frozenset(("and", "or", "xor", "exch", "cas"))


def _atomic_value(x: Lowering, operands: Operands, which: int, *, wide: bool) -> Register | Immediate | None:
    """Where a compare-and-swap names one operand, what is swapped in is in the registers after it."""
    found: object = None
    if which < len(operands):
        operand = operands[which]
        if isinstance(operand, RegisterOperand) and operand.is_predicate:
            return None
        found = x.wide_source(operand) if wide else x.source(operand)
    elif which == 1 and operands:
        first = operands[0]
        if isinstance(first, RegisterOperand) and first.index is not None:
            step = 2 if wide else 1
            found = (
                x.wide(first.bank, first.index + step)
                if wide
                else x.files.register(first.bank, first.index + step)
            )
    return found if isinstance(found, Register | Immediate) else None


def _copy(x: Lowering, operands: Operands) -> None:
    """`LDGSTS.128 [shared], [global] [, P]`: without the predicate zeros are written and nothing is read."""
    count, _ = _shape(x)
    to, origin = x.address(operands[0]), x.address(operands[1])
    truths = [o for o in operands[2:] if isinstance(o, RegisterOperand) and o.is_predicate]
    reads = x.predicate(truths[0]) if truths else TRUE
    x.effect(f"cp.words.{count}", to, origin, reads)


def _matrix_load(x: Lowering, operands: Operands) -> None:
    """`LDSM.16.M88.4 d, [a]`: eight lanes address the rows of each matrix."""
    count = _matrices(x)
    address = x.address(operands[1])
    registers = x.targets(operands[0], count)
    x.effect(f"ld.matrix.{count}", None, address)
    x.opaque(*(registers or ()))


def _matrix_store(x: Lowering, operands: Operands) -> None:
    x.effect(f"st.matrix.{_matrices(x)}", x.address(operands[0]))


def _matrices(x: Lowering) -> int:
    return next((int(p) for p in x.machine.opcode.split(".")[1:] if p in {"2", "4"}), 1)


def _synchronise(x: Lowering, operands: Operands) -> None:
    """`SYNCS`: operations on an mbarrier, whose waits succeed at once."""
    for operand in operands[: leading_predicates(operands)]:
        x.define(operand, "mov.pred", TRUE)
    rest = operands[leading_predicates(operands) :]
    if rest and isinstance(rest[0], RegisterOperand):
        x.opaque(*(x.targets(rest[0], 2 if "64" in x.machine.opcode else 1) or ()))


def _query(x: Lowering, operands: Operands) -> None:
    """`QSPC.E.S P, d, [a]`: whether a generic address is of shared memory."""
    x.opaque(*[r for o in operands[:2] if isinstance(o, RegisterOperand) and (r := x.target(o)) is not None])


def _bulk(x: Lowering, operands: Operands) -> None:
    """Copies of the tensor memory accelerator: counted as instructions."""


MEMORY_RULES: dict[str, Rule] = {
    **dict.fromkeys(["LDG", "LDS", "LDL", "LD"], _load),
    **dict.fromkeys(["STG", "STS", "STL", "ST"], _store),
    **dict.fromkeys(["ATOMG", "ATOMS", "ATOM", "RED", "REDG", "REDS"], _atomic),
    "LDGSTS": _copy,
    "LDSM": _matrix_load,
    "STSM": _matrix_store,
    "SYNCS": _synchronise,
    "QSPC": _query,
    **dict.fromkeys(
        [
            "UTMALDG",
            "UTMASTG",
            "UBLKCP",
            "UTMAREDG",
            "UBLKRED",
            "UTMACMDFLUSH",
            "ARRIVES",
            "UTMAPF",
            "UBLKPF",
        ],
        _bulk,
    ),
    "MOVM": opaque_words(1),
}
