"""Registers split into values: one register for each definition, and one where values of several ways meet.

This is static single assignment (Cytron et al., "Efficiently Computing Static Single Assignment Form and the Control
Dependence Graph", 1991), without its minimality. A machine register holds an address now and a float later; only as
separate values can what is needed of a kernel be told from what isn't.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from mctskernel.profiling.emulator.control_flow import Block
from mctskernel.profiling.emulator.ptx import (
    Address,
    Instruction,
    Negated,
    Operand,
    Pair,
    Register,
    Vector,
    registers_of,
)
from mctskernel.profiling.machine_code.predication import Guard, Predication

_ORDINALS = 1 << 24

Names = Mapping[Register, Register]


@dataclass(frozen=True)
class Values:
    """Code over values. `meetings` gives for each value that begins a block those that it may be."""

    blocks: list[Block]
    meetings: Mapping[Register, tuple[Register, ...]]


def split_into_values(
    blocks: Sequence[Block], named: Collection[Register], guards: Mapping[int, Guard | None]
) -> Values:
    """The same code over one register a value. Only `named` registers are split; the others are left as they are.

    Blocks are numbered in the flow's direction. `guards` gives the predicate of each machine instruction, by the
    number that its lowered ones carry as a line.
    """
    return _Splitter(blocks, named, guards).split()


def joined(
    blocks: Sequence[Block], values: Collection[Register], meetings: Mapping[Register, tuple[Register, ...]]
) -> tuple[list[Block], frozenset[Register]]:
    """Code and `values` over registers again: values that meet share one. They came from the same register."""
    parents: dict[Register, Register] = {}

    def root(value: Register) -> Register:
        while value in parents:
            above = parents[value]
            if above in parents:
                parents[value] = parents[above]
            value = above
        return value

    for meeting, arriving in meetings.items():
        if meeting in values:
            for value in arriving:
                a, b = root(value), root(meeting)
                if a is not b:
                    parents[a] = b
    names = {value: root(value) for value in parents}
    return [_renamed_block(block, names) for block in blocks], frozenset(map(root, values))


class _Splitter:
    def __init__(
        self, blocks: Sequence[Block], named: Collection[Register], guards: Mapping[int, Guard | None]
    ) -> None:
        self.blocks = list(blocks)
        self.bit = {register: 1 << position for position, register in enumerate(named)}
        self.named = list(named)
        self.ordinals = itertools.count(_ORDINALS)
        self.effects: dict[int, tuple[Block, int, int]] = {}
        self.live = self._live_in()
        while True:
            predication = Predication(self.blocks, guards, self._is_live)
            self.blocks = [predication.without_idle_guards(block) for block in self.blocks]
            before, self.live = self.live, self._live_in()
            if self.live == before:
                break

    def _is_live(self, block: int, register: Register) -> bool:
        return bool(self.live[block] & self.bit.get(register, 0))

    def _members(self, bits: int) -> list[Register]:
        found = []
        while bits:
            lowest = bits & -bits
            found.append(self.named[lowest.bit_length() - 1])
            bits ^= lowest
        return found

    def _live_in(self) -> list[int]:
        """For each block the registers that are read in it or after it before they are written, as bits."""
        effects = [self._read_and_written(block) for block in self.blocks]
        live = [read for read, _ in effects]
        changed = True
        while changed:
            changed = False
            for block in reversed(self.blocks):
                out = 0
                for target in block.targets:
                    out |= live[target]
                read, written = effects[block.number]
                found = read | (out & ~written)
                if found != live[block.number]:
                    live[block.number], changed = found, True
        return live

    def _read_and_written(self, block: Block) -> tuple[int, int]:
        known = self.effects.get(block.number)
        if known is not None and known[0] is block:
            return known[1:]
        read = written = 0
        for instruction in block.instructions:
            for register in instruction.uses:
                read |= self.bit.get(register, 0) & ~written
            for register in instruction.definitions:
                written |= self.bit.get(register, 0)
        for register in _at_end(block):
            read |= self.bit.get(register, 0) & ~written
        self.effects[block.number] = (block, read, written)
        return read, written

    def _fresh(self, register: Register) -> Register:
        return Register(next(self.ordinals), register.type)

    def split(self) -> Values:
        sources: dict[int, list[int]] = {block.number: [] for block in self.blocks}
        for block in self.blocks:
            for target in set(block.targets):
                sources[target].append(block.number)
        leaving: dict[int, dict[Register, Register]] = {}
        entered: dict[int, dict[Register, Register]] = {}
        found = []
        for block in self.blocks:
            before = sources[block.number]
            live = self._members(self.live[block.number])
            if len(before) == 1 and before[0] in leaving and block.number:
                current = {register: leaving[before[0]][register] for register in live}
            else:
                current = {register: self._fresh(register) for register in live}
                entered[block.number] = dict(current)
            found.append(self._block(block, current))
            leaving[block.number] = current
        meetings = {
            value: tuple(dict.fromkeys(leaving[source][register] for source in sources[number]))
            for number, values in entered.items()
            for register, value in values.items()
        }
        return Values(found, meetings)

    def _block(self, block: Block, current: dict[Register, Register]) -> Block:
        """The block over values; `current` is brought to its end."""
        instructions: list[Instruction] = []
        for instruction in block.instructions:
            read = {
                register: self._value(register, current)
                for register in instruction.uses
                if register in self.bit
            }
            written: dict[Register, Register] = {}
            for register in instruction.definitions:
                if register not in self.bit:
                    continue
                value = written[register] = self._fresh(register)
                if instruction.guard is not None:
                    opcode = "mov.pred" if register.type == "pred" else "mov.b32"
                    kept = self._value(register, current)
                    instructions.append(Instruction(opcode, (value, kept), None, instruction.line))
                current[register] = value
            instructions.append(_renamed(instruction, read, written) if read or written else instruction)
        names = {
            register: self._value(register, current) for register in _at_end(block) if register in self.bit
        }
        return _renamed_end(replace(block, instructions=instructions), names)

    def _value(self, register: Register, current: dict[Register, Register]) -> Register:
        if register not in current:
            current[register] = self._fresh(register)
        return current[register]


def _at_end(block: Block) -> list[Register]:
    """What a block's branch or barrier reads."""
    found = list(registers_of([block.condition])) if block.condition is not None else []
    if block.final is not None:
        found += registers_of(block.final.operands)
    return found


def _renamed_block(block: Block, names: Names) -> Block:
    if not names:
        return block
    instructions = [_renamed(instruction, names, names) for instruction in block.instructions]
    return _renamed_end(replace(block, instructions=instructions), names)


def _renamed_end(block: Block, names: Names) -> Block:
    found = with_registers(block.condition, names)
    condition = found if isinstance(found, Register | Negated) else None
    final = block.final
    if final is not None:
        final = replace(final, operands=_all_with_registers(final.operands, names), guard=condition)
    return replace(block, condition=condition, final=final)


def _renamed(instruction: Instruction, read: Names, written: Names) -> Instruction:
    operands = instruction.operands
    if written and instruction.definitions:
        renamed = (with_registers(operands[0], written), *_all_with_registers(operands[1:], read))
    elif instruction.definitions:
        renamed = (operands[0], *_all_with_registers(operands[1:], read))
    else:
        renamed = _all_with_registers(operands, read)
    guard = with_registers(instruction.guard, read)
    return Instruction(
        instruction.opcode,
        renamed,
        guard if isinstance(guard, Register | Negated) else None,
        instruction.line,
    )


def _all_with_registers(operands: Iterable[Operand | None], names: Names) -> tuple[Operand | None, ...]:
    return tuple(with_registers(operand, names) for operand in operands)


def with_registers(operand: Operand | None, names: Names) -> Operand | None:
    """An operand with other registers in the place of its own."""
    match operand:
        case Register():
            return names.get(operand, operand)
        case Negated(register):
            return Negated(names.get(register, register))
        case Address(Register() as base, offset):
            return Address(names.get(base, base), offset)
        case Vector(elements):
            return Vector(tuple(with_registers(element, names) for element in elements))
        case Pair(first, second):
            return Pair(with_registers(first, names), with_registers(second, names))
        case _:
            return operand
