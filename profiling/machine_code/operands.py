"""Operands of machine code as data, from the text in which a disassembler writes them."""

from __future__ import annotations

import enum
import re
import struct
from dataclasses import dataclass
from functools import lru_cache


class Bank(enum.StrEnum):
    """A register file."""

    REGISTER = "R"
    UNIFORM = "UR"
    PREDICATE = "P"
    UNIFORM_PREDICATE = "UP"


@dataclass(frozen=True, slots=True)
class RegisterOperand:
    """A register; `index` is None for RZ, URZ, PT and UPT.

    `negated` is `-` and `inverted` is `~` or, of a predicate, `!`. `view` is what follows the number, such as
    "64" or "H0_H0".
    """

    bank: Bank
    index: int | None
    negated: bool = False
    inverted: bool = False
    absolute: bool = False
    view: str = ""

    @property
    def is_predicate(self) -> bool:
        """Whether it holds a truth value."""
        return self.bank in {Bank.PREDICATE, Bank.UNIFORM_PREDICATE}


@dataclass(frozen=True, slots=True)
class ImmediateOperand:
    """A literal: an integer, or a float."""

    value: int | float

    def bits(self, size: int = 4) -> int:
        """As an unsigned number of so many bytes; a float in its IEEE format."""
        if isinstance(self.value, float):
            form = {2: "<e", 4: "<f", 8: "<d"}[size]
            try:
                return int.from_bytes(struct.pack(form, self.value), "little")
            except OverflowError:
                return int.from_bytes(struct.pack(form, float("inf")), "little")
        return self.value & ((1 << 8 * size) - 1)


@dataclass(frozen=True, slots=True)
class ConstantOperand:
    """`c[bank][index + offset]`."""

    bank: int
    offset: int
    index: RegisterOperand | None = None
    negated: bool = False
    inverted: bool = False
    absolute: bool = False


@dataclass(frozen=True, slots=True)
class MemoryOperand:
    """`[base.scale + uniform + offset]`; with `wide`, the base is a pair of registers."""

    base: RegisterOperand | None
    uniform: RegisterOperand | None
    offset: int
    wide: bool = False
    scale: int = 1


@dataclass(frozen=True, slots=True)
class NamedOperand:
    """Anything else, by its text: special registers, labels, barriers of convergence."""

    name: str


Operand = RegisterOperand | ImmediateOperand | ConstantOperand | MemoryOperand | NamedOperand

_REGISTER = re.compile(
    r"(?P<sign>[-~!]*)(?P<bar>\|?)(?P<bank>UR|UP|R|P)(?P<index>\d+|Z|T)\|?"
    r"(?P<view>(?:\.[A-Z0-9_]+)*)(?P<reuse>\.reuse)?"
)
_CONSTANT = re.compile(
    r"(?P<sign>[-~]?)(?P<bar>\|?)c\[(?P<bank>0x[0-9a-f]+)\]\[(?:(?P<index>U?R\d+|U?RZ)(?:\.\w+)?\+?)?(?P<offset>-?0x[0-9a-f]+)?\]\|?"
    r"(?:\.\w+)*"
)
_INTEGER = re.compile(r"(?P<sign>-?)0x(?P<digits>[0-9a-f]+)$")
_FLOAT = re.compile(r"(?P<sign>[-+]?)(?P<number>\d+(?:\.\d*)?(?:e[-+]?\d+)?|INF|QNAN|SNAN)(?:\.\w+)?$", re.I)
_MEMORY = re.compile(r"(?:g?desc\[(?P<descriptor>UR\d+|URZ)\])?\[(?P<inside>[^\]]*)\]")


def split(text: str) -> list[str]:
    """The operands of an instruction as separate texts."""
    return [part.strip() for part in text.split(",")] if text else []


@lru_cache(maxsize=1 << 16)
def parse_operand(text: str) -> Operand:
    """One operand; what has none of the known forms comes back by name."""
    if match := _REGISTER.fullmatch(text):
        return _register(match)
    if match := _INTEGER.match(text):
        value = int(match["digits"], 16)
        return ImmediateOperand(-value if match["sign"] else value)
    if match := _FLOAT.match(text):
        return ImmediateOperand(_float(match["sign"] + match["number"]))
    if match := _CONSTANT.fullmatch(text):
        index = parse_operand(match["index"]) if match["index"] else None
        return ConstantOperand(
            int(match["bank"], 16),
            int(match["offset"] or "0", 16),
            index if isinstance(index, RegisterOperand) else None,
            negated=match["sign"] == "-",
            inverted=match["sign"] == "~",
            absolute=bool(match["bar"]),
        )
    if match := _MEMORY.fullmatch(text):
        return _memory(match["inside"]) or NamedOperand(text)
    return NamedOperand(text)


def _float(text: str) -> float:
    upper = text.upper()
    if upper.endswith("NAN"):
        return float("nan")
    return float(upper.replace("INF", "inf"))


def _register(match: re.Match[str]) -> RegisterOperand:
    index = match["index"]
    return RegisterOperand(
        Bank(match["bank"]),
        None if index in {"Z", "T"} else int(index),
        negated="-" in match["sign"],
        inverted="~" in match["sign"] or "!" in match["sign"],
        absolute=bool(match["bar"]),
        view=match["view"][1:].removesuffix(".reuse").removesuffix("reuse"),
    )


def _memory(inside: str) -> MemoryOperand | None:
    """The parts of an address: `R2.64+UR4+0x10`, `R3.X4+0x20`, `UR5`."""
    base: RegisterOperand | None = None
    uniform: RegisterOperand | None = None
    offset, scale, wide = 0, 1, False
    for part in filter(None, inside.replace("+-", "+ -").replace(" ", "").split("+")):
        operand = parse_operand(part)
        if isinstance(operand, ImmediateOperand) and isinstance(operand.value, int):
            offset += operand.value
        elif isinstance(operand, RegisterOperand) and not operand.is_predicate:
            views = operand.view.split(".")
            if operand.bank is Bank.UNIFORM and (base is not None or "64" not in views):
                uniform = operand
            else:
                base = operand
                wide = "64" in views
                scale = next((int(view[1:]) for view in views if re.fullmatch(r"X\d+", view)), 1)
        else:
            return None
    return MemoryOperand(base, uniform, offset, wide, scale)
