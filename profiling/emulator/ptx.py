"""A PTX module as plain data: entries and functions made of instructions, registers and literals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

SIZES = {
    **dict.fromkeys(("pred", "b8", "u8", "s8", "e4m3x", "e5m2x"), 1),
    **dict.fromkeys(("b16", "u16", "s16", "f16", "bf16"), 2),
    **dict.fromkeys("b32 u32 s32 f32 tf32 f16x2 bf16x2".split(), 4),
    **dict.fromkeys(("b64", "u64", "s64", "f64"), 8),
}


WITHOUT_DESTINATION = frozenset(
    """
    st stmatrix red bar barrier contribute membar fence bra brx ret exit trap cp prefetch prefetchu
    discard nanosleep griddepcontrol applypriority pmevent setmaxnreg brkpt
    """.split()
)


class UnsupportedPtxError(Exception):
    """The text holds an instruction or a directive that the emulator does not know."""

    def __init__(self, what: str, line: int | None = None) -> None:
        super().__init__(f"{what} (source line {line})" if line else what)
        self.what = what
        self.line = line


@dataclass(frozen=True, slots=True, eq=False)
class Register:
    """A virtual register: an ordinal that is unique in its function and its declared type."""

    ordinal: int
    type: str


@dataclass(frozen=True, slots=True)
class Immediate:
    """A literal: an integer, or the bits of a float (`form` is "int", "f32" or "f64")."""

    value: int
    form: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """The address of a variable, the name of a function or a special register."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Address:
    base: Register | Symbol | None
    offset: int


@dataclass(frozen=True, slots=True)
class Negated:
    register: Register


@dataclass(frozen=True, slots=True)
class Pair:
    """Two destinations, `d|p`."""

    first: Operand | None
    second: Operand | None


@dataclass(frozen=True, slots=True)
class Vector:
    elements: tuple[Operand | None, ...]


@dataclass(frozen=True, slots=True)
class Arguments:
    """A parenthesised list of parameter variables in a call."""

    names: tuple[str, ...]


Operand = Register | Immediate | Symbol | Address | Negated | Pair | Vector | Arguments


@dataclass(frozen=True)
class Instruction:
    opcode: str
    operands: tuple[Operand | None, ...]
    guard: Register | Negated | None = None
    line: int | None = None

    @cached_property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.opcode.split("."))

    @cached_property
    def definitions(self) -> tuple[Register, ...]:
        if not self.operands or self.parts[0] in WITHOUT_DESTINATION:
            return ()
        first = self.operands[0]
        return () if isinstance(first, Address) else tuple(registers_of([first]))

    @cached_property
    def uses(self) -> tuple[Register, ...]:
        """Registers that it reads; a guarded write keeps the old value, so it reads it too."""
        found = tuple(registers_of(self.operands[1:] if self.definitions else self.operands))
        return found if self.guard is None else (*found, *registers_of([self.guard]), *self.definitions)


def registers_of(operands: Iterable[Operand | None]) -> Iterator[Register]:
    """The registers in some operands, those of addresses included."""
    for operand in operands:
        match operand:
            case Register():
                yield operand
            case Negated(register):
                yield register
            case Address(Register() as base, _):
                yield base
            case Pair(first, second):
                yield from registers_of([first, second])
            case Vector(elements):
                yield from registers_of(elements)


@dataclass(frozen=True, slots=True)
class Label:
    name: str


@dataclass(frozen=True, slots=True)
class BranchTargets:
    name: str
    labels: tuple[str, ...]


Statement = Instruction | Label | BranchTargets


@dataclass(frozen=True, slots=True)
class Parameter:
    """A kernel parameter; `type` is a PTX type such as "u64", `size` and `align` are bytes."""

    name: str
    type: str
    size: int
    align: int


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of a state space; `size` in bytes, 0 for an `.extern` array; `data` is its initial value."""

    name: str
    space: str
    size: int
    align: int
    data: bytes | None = None


@dataclass(frozen=True)
class Function:
    name: str
    parameters: tuple[Parameter, ...]
    results: tuple[Parameter, ...]
    body: tuple[Statement, ...]
    variables: tuple[Variable, ...]
    max_threads: int | None


@dataclass(frozen=True)
class Module:
    entries: Mapping[str, Function]
    functions: Mapping[str, Function]
    variables: tuple[Variable, ...]
    blocks: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    compiled: dict[object, object] = field(default_factory=dict, repr=False, compare=False)
