"""Operands from their text."""

import pytest

from mctskernel.profiling.machine_code.operands import (
    Bank,
    ConstantOperand,
    ImmediateOperand,
    MemoryOperand,
    NamedOperand,
    Operand,
    RegisterOperand,
    parse_operand,
)

REGISTER, UNIFORM, PREDICATE = Bank.REGISTER, Bank.UNIFORM, Bank.PREDICATE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("R12", RegisterOperand(REGISTER, 12)),
        ("R12.reuse", RegisterOperand(REGISTER, 12)),
        ("RZ", RegisterOperand(REGISTER, None)),
        ("-R3.reuse", RegisterOperand(REGISTER, 3, negated=True)),
        ("~UR7", RegisterOperand(UNIFORM, 7, inverted=True)),
        ("|R3|", RegisterOperand(REGISTER, 3, absolute=True)),
        ("-|R3|", RegisterOperand(REGISTER, 3, negated=True, absolute=True)),
        ("R4.H0_H0", RegisterOperand(REGISTER, 4, view="H0_H0")),
        ("!PT", RegisterOperand(PREDICATE, None, inverted=True)),
        ("!UP2", RegisterOperand(Bank.UNIFORM_PREDICATE, 2, inverted=True)),
        ("0x1f", ImmediateOperand(31)),
        ("-0x300", ImmediateOperand(-768)),
        ("1.4426950216293334961", ImmediateOperand(1.4426950216293335)),
        ("-INF", ImmediateOperand(float("-inf"))),
        ("c[0x0][0x210]", ConstantOperand(0, 0x210)),
        ("-c[0x3][R2+0x8]", ConstantOperand(3, 8, RegisterOperand(REGISTER, 2), negated=True)),
        ("[R2]", MemoryOperand(RegisterOperand(REGISTER, 2), None, 0)),
        (
            "desc[UR4][R2.64+-0x8]",
            MemoryOperand(RegisterOperand(REGISTER, 2, view="64"), None, -8, wide=True),
        ),
        (
            "[R3.X4+UR5+0x20]",
            MemoryOperand(RegisterOperand(REGISTER, 3, view="X4"), RegisterOperand(UNIFORM, 5), 32, scale=4),
        ),
        ("[UR5]", MemoryOperand(None, RegisterOperand(UNIFORM, 5), 0)),
        ("SR_TID.X", NamedOperand("SR_TID.X")),
        ("`(.L_x_1)", NamedOperand("`(.L_x_1)")),
    ],
)
def test_operands_are_read(text: str, expected: Operand) -> None:
    assert parse_operand(text) == expected


def test_literals_give_their_bits() -> None:
    assert ImmediateOperand(-1).bits() == 0xFFFFFFFF
    assert ImmediateOperand(1.0).bits() == 0x3F800000
    assert ImmediateOperand(1.0).bits(2) == 0x3C00
