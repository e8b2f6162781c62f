"""Machine code in the form that the PTX emulator runs: its instructions, over registers of 32 bits and predicates.

One machine instruction becomes a few of the emulator's, over temporaries; each carries the index of the machine
instruction in place of a source line. What is computed from floats and has no use for addresses stays `opaque`: the
registers are known to change, and no more.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mctskernel.profiling.emulator.ptx import (
    Address,
    Immediate,
    Negated,
    Register,
    Vector,
)
from mctskernel.profiling.emulator.ptx import (
    Instruction as Lowered,
)
from mctskernel.profiling.emulator.ptx import (
    Operand as Value,
)
from mctskernel.profiling.machine_code.instructions import Instruction
from mctskernel.profiling.machine_code.operands import (
    Bank,
    ConstantOperand,
    ImmediateOperand,
    MemoryOperand,
    NamedOperand,
    Operand,
    RegisterOperand,
    parse_operand,
    split,
)

ZERO = Immediate(0, "int")
FALSE, TRUE = Immediate(0, "int"), Immediate(1, "int")

Predicate = Register | Negated | Immediate


class UnknownInstructionError(Exception):
    """An instruction that the interpreter doesn't know; its text is the opcode with its operands."""


@dataclass
class Lowering:
    """Collects the lowered instructions of one straight piece of code."""

    files: RegisterFiles
    instructions: list[Lowered] = field(default_factory=list)
    machine: Instruction = field(default=None)  # type: ignore[assignment]
    index: int = 0
    guard: Register | Negated | None = None
    wides: dict[tuple[Register, Register | None], Register] = field(default_factory=dict)

    def lower(self, index: int, instruction: Instruction, rules: Mapping[str, Rule]) -> None:
        """Append what one instruction becomes. Raises UnknownInstructionError."""
        self.index, self.machine = index, instruction
        self.guard = self.guard_of(instruction)
        if self.guard is _NEVER:
            return
        self.files.guards[index] = self.guard
        rule = rules.get(instruction.mnemonic)
        if rule is None:
            raise self.unknown()
        try:
            rule(self, [parse_operand(text) for text in split(instruction.operands)])
        except (ValueError, IndexError, TypeError) as error:
            raise self.unknown() from error

    @property
    def modifiers(self) -> list[str]:
        """The parts of the opcode after its mnemonic."""
        return self.machine.opcode.split(".")[1:]

    def unknown(self) -> UnknownInstructionError:
        return UnknownInstructionError(f"{self.machine.opcode} {self.machine.operands}".strip())

    def guard_of(self, instruction: Instruction) -> Register | Negated | None:
        """The predicate under which it runs: None for always."""
        if not instruction.predicate or instruction.predicate in {"PT", "UPT"}:
            return None
        found = self.predicate(parse_operand(instruction.predicate))
        if isinstance(found, Immediate):
            return None if found.value else _NEVER
        return found

    # What instructions read

    def source(self, operand: Operand) -> Value:
        """Thirty-two bits, with the operand's minus or complement applied."""
        match operand:
            case RegisterOperand(bank, index):
                if operand.is_predicate:
                    raise self.unknown()
                value: Value = ZERO if index is None else self.files.register(bank, index)
            case ImmediateOperand():
                return Immediate(operand.bits(), "int")
            case ConstantOperand():
                value = self.constant(operand, "b32")
            case _:
                raise self.unknown()
        if operand.absolute:
            value = self.temporary("b32", "abs.s32", value)
        if operand.negated:
            value = ZERO if value is ZERO else self.temporary("b32", "neg.s32", value)
        if operand.inverted:
            value = Immediate(0xFFFFFFFF, "int") if value is ZERO else self.temporary("b32", "not.b32", value)
        return value

    def plain(self, operand: Operand) -> Value:
        """Thirty-two bits without the operand's sign, which the caller sees to."""
        if isinstance(operand, RegisterOperand):
            return ZERO if operand.index is None else self.files.register(operand.bank, operand.index)
        if isinstance(operand, ConstantOperand):
            return self.constant(operand, "b32")
        return self.source(operand)

    def float_source(self, operand: Operand) -> Value:
        """A single-precision number, with its sign."""
        match operand:
            case ImmediateOperand():
                return Immediate(ImmediateOperand(float(operand.value)).bits(), "f32")
            case RegisterOperand(bank, index) if not operand.is_predicate:
                value: Value = Immediate(0, "f32") if index is None else self.files.register(bank, index)
            case ConstantOperand():
                value = self.constant(operand, "b32")
            case _:
                raise self.unknown()
        if operand.absolute:
            value = self.temporary("b32", "and.b32", value, Immediate(0x7FFFFFFF, "int"))
        if operand.negated:
            value = self.temporary("b32", "xor.b32", value, Immediate(0x80000000, "int"))
        return value

    def wide_source(self, operand: Operand) -> Value:
        """Sixty-four bits: a pair of registers, a constant or a literal."""
        match operand:
            case RegisterOperand(_, None):
                return ZERO
            case RegisterOperand(bank, index) if index is not None and not operand.is_predicate:
                value: Value = self.wide(bank, index)
            case ImmediateOperand():
                return Immediate(operand.bits(8), "int")
            case ConstantOperand():
                value = self.constant(operand, "b64")
            case _:
                raise self.unknown()
        if operand.negated:
            value = self.temporary("b64", "neg.s64", value)
        if operand.inverted:
            value = self.temporary("b64", "not.b64", value)
        return value

    def wide(self, bank: Bank, index: int) -> Register:
        """A pair of registers as one value, put together once for all that read it."""
        low, high = self.files.register(bank, index), self.files.register(bank, index + 1)
        if (low, high) not in self.wides:
            self.wides[low, high] = self.temporary("b64", "mov.b64", Vector((low, high)))
        return self.wides[low, high]

    def constant(self, operand: ConstantOperand, type_: str) -> Register:
        if operand.index is None:
            return self.temporary(type_, f"bank.{type_}", _number(operand.bank), _number(operand.offset))
        index = self.source(operand.index)
        at = self.temporary("b32", "add.u32", index, _number(operand.offset)) if operand.offset else index
        return self.temporary(type_, f"bank.{type_}", _number(operand.bank), at)

    def predicate(self, operand: Operand) -> Predicate:
        """A truth value, with its negation."""
        if not isinstance(operand, RegisterOperand) or not operand.is_predicate:
            raise self.unknown()
        if operand.index is None:
            return FALSE if operand.inverted else TRUE
        register = self.files.register(operand.bank, operand.index)
        return Negated(register) if operand.inverted else register

    def address(self, operand: Operand) -> Address:
        """Where a memory operand points."""
        if not isinstance(operand, MemoryOperand):
            raise self.unknown()
        base: Value | None = None
        if operand.base is not None and operand.base.index is not None:
            base = self.wide_source(operand.base) if operand.wide else self.plain(operand.base)
            if operand.scale > 1:
                base = self.temporary("b32", "mul.lo.u32", base, _number(operand.scale))
        if operand.uniform is not None and operand.uniform.index is not None:
            uniform = self.files.register(operand.uniform.bank, operand.uniform.index)
            base = self._sum_of_bases(base, uniform, wide=operand.wide)
        return Address(base if isinstance(base, Register) else None, operand.offset)

    def _sum_of_bases(self, base: Value | None, uniform: Register, *, wide: bool) -> Register:
        if base is None:
            return uniform
        if wide:
            extended = self.temporary("b64", "cvt.u64.u32", uniform)
            return self.temporary("b64", "add.u64", base, extended)
        return self.temporary("b32", "add.u32", base, uniform)

    # What instructions write

    def temporary(self, type_: str, opcode: str, *sources: Value | None) -> Register:
        """The result of an unconditional operation."""
        register = self.files.temporary(type_)
        self.instructions.append(Lowered(opcode, (register, *sources), None, self.index))
        return register

    def effect(self, opcode: str, *operands: Value | None) -> None:
        """An operation under the instruction's guard; destinations come from `target` or `targets`."""
        self.instructions.append(Lowered(opcode, operands, self.guard, self.index))

    def define(self, operand: Operand, opcode: str, *sources: Value | None) -> None:
        """Write a register of 32 bits or a predicate."""
        target = self.target(operand)
        if target is not None:
            self.effect(opcode, target, *sources)

    def define_wide(self, operand: Operand, value: Value) -> None:
        """Write a pair of registers."""
        pair = self.targets(operand, 2)
        if pair is None:
            return
        self.effect("mov.b64", Vector(pair), value)
        if self.guard is None and isinstance(value, Register):
            self.wides[pair[0], pair[1]] = value

    def target(self, operand: Operand) -> Register | None:
        """A destination, None for those that keep nothing. What was known of pairs with it is forgotten."""
        if not isinstance(operand, RegisterOperand):
            raise self.unknown()
        if operand.index is None:
            return None
        register = self.files.register(operand.bank, operand.index)
        self._forget(register)
        return register

    def targets(self, operand: Operand, count: int) -> tuple[Register, ...] | None:
        """So many destinations from one on."""
        if not isinstance(operand, RegisterOperand) or operand.is_predicate:
            raise self.unknown()
        if operand.index is None:
            return None
        found = tuple(self.files.register(operand.bank, operand.index + i) for i in range(count))
        for register in found:
            self._forget(register)
        return found

    def opaque(self, *registers: Register) -> None:
        """These change to something that isn't known."""
        if registers:
            self.effect("opaque", Vector(registers))

    def _forget(self, register: Register) -> None:
        if self.wides:
            for pair in [pair for pair in self.wides if register in pair]:
                del self.wides[pair]


Rule = Callable[[Lowering, Sequence[Operand]], None]


@dataclass
class RegisterFiles:
    """The machine's registers, and temporaries, as the emulator's."""

    named: dict[tuple[Bank | str, int], Register] = field(default_factory=dict)
    ordinals: itertools.count[int] = field(default_factory=itertools.count)
    guards: dict[int, Register | Negated | None] = field(default_factory=dict)

    def register(self, bank: Bank | str, index: int) -> Register:
        """A machine register; `bank` is also "stack" for a word of the thread's stack frame."""
        key = (bank, index)
        found = self.named.get(key)
        if found is None:
            predicate = bank in {Bank.PREDICATE, Bank.UNIFORM_PREDICATE}
            found = self.named[key] = Register(next(self.ordinals), "pred" if predicate else "b32")
        return found

    def temporary(self, type_: str) -> Register:
        return Register(next(self.ordinals), type_)


_NEVER = Register(-1, "pred")


def _number(value: int) -> Immediate:
    return Immediate(value & 0xFFFFFFFF, "int")


def leading_predicates(operands: Sequence[Operand]) -> int:
    """How many operands from the first on are predicates."""
    count = 0
    while count < len(operands):
        operand = operands[count]
        if not isinstance(operand, RegisterOperand) or not operand.is_predicate:
            break
        count += 1
    return count


def name_of(operand: Operand) -> str:
    """The text of an operand that is known by its name."""
    return operand.name if isinstance(operand, NamedOperand) else ""


def opaque_words(count: int) -> Rule:
    """A destination of so many registers, whose contents are of no interest, and any predicates before it."""

    def rule(x: Lowering, operands: Sequence[Operand]) -> None:
        outs = leading_predicates(operands)
        registers = [r for o in operands[:outs] if (r := x.target(o)) is not None]
        if outs < len(operands) and isinstance(operands[outs], RegisterOperand):
            registers += x.targets(operands[outs], count) or ()
        x.opaque(*registers)

    return rule


def with_uniform_twins(rules: Mapping[str, Rule]) -> dict[str, Rule]:
    """Rules for instructions and for those of the uniform datapath, whose names begin with U."""
    return {**rules, **{f"U{name}": rule for name, rule in rules.items()}}
