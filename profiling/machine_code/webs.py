"""Registers split into webs: a machine register that holds unrelated values in turn becomes one register for each.

A web is what definitions and uses have in common that reach each other; the name is Muchnick's, "Advanced Compiler
Design and Implementation", 1997, section 16.3.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from mctskernel.profiling.emulator.control_flow import Block, definitions, registers_of, uses
from mctskernel.profiling.emulator.ptx import (
    Address,
    Instruction,
    Negated,
    Operand,
    Pair,
    Register,
    Vector,
)
from mctskernel.profiling.machine_code.predication import Guard, Predication


def split_into_webs(
    blocks: Sequence[Block], named: Collection[Register], guards: Mapping[int, Guard | None]
) -> list[Block]:
    """The same code over one register a web. Only `named` registers are split; the others are left as they are.

    `guards` gives the predicate of each machine instruction, by the number that its lowered ones carry as a line.
    """
    return _Webs(blocks, named, guards).renamed()


class _Webs:
    def __init__(
        self, blocks: Sequence[Block], named: Collection[Register], guards: Mapping[int, Guard | None]
    ) -> None:
        self.blocks = blocks
        self.bit = {register: 1 << position for position, register in enumerate(named)}
        self.named = list(named)
        self.parents: list[int] = []
        self.types: list[str] = []
        self.live = self._live_in()
        while True:
            predication = Predication(self.blocks, guards, self._is_live)
            self.blocks = [predication.without_idle_guards(block) for block in self.blocks]
            before, self.live = self.live, self._live_in()
            if self.live == before:
                break
        self.entries: list[dict[Register, int]] = [
            {register: self._node(register) for register in self._members(live)} for live in self.live
        ]

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
        read, written = [], []
        for block in self.blocks:
            block_read = block_written = 0
            for instruction in block.instructions:
                for register in uses(instruction):
                    block_read |= self.bit.get(register, 0) & ~block_written
                for register in definitions(instruction):
                    block_written |= self.bit.get(register, 0)
            for register in _at_end(block):
                block_read |= self.bit.get(register, 0) & ~block_written
            read.append(block_read)
            written.append(block_written)
        live = list(read)
        changed = True
        while changed:
            changed = False
            for block in reversed(self.blocks):
                out = 0
                for target in block.targets:
                    out |= live[target]
                found = read[block.number] | (out & ~written[block.number])
                if found != live[block.number]:
                    live[block.number], changed = found, True
        return live

    def _node(self, register: Register) -> int:
        self.parents.append(len(self.parents))
        self.types.append(register.type)
        return len(self.parents) - 1

    def _find(self, node: int) -> int:
        parents = self.parents
        while parents[node] != node:
            parents[node] = parents[parents[node]]
            node = parents[node]
        return node

    def renamed(self) -> list[Block]:
        marked = [self._mark(block) for block in self.blocks]
        ordinals = itertools.count(1 << 24)
        registers: dict[int, Register] = {}

        def register_of(node: int) -> Register:
            root = self._find(node)
            if root not in registers:
                registers[root] = Register(next(ordinals), self.types[root])
            return registers[root]

        return [
            _rewritten(block, marks, at_end, register_of)
            for block, (marks, at_end) in zip(self.blocks, marked, strict=True)
        ]

    def _mark(
        self, block: Block
    ) -> tuple[list[tuple[dict[Register, int], dict[Register, int]]], dict[Register, int]]:
        """The nodes that each instruction reads and writes, and those at the block's end."""
        current = dict(self.entries[block.number])
        marks = []
        for instruction in block.instructions:
            before = {}
            for register in uses(instruction):
                if register in current:
                    before[register] = current[register]
                elif register in self.bit:
                    before[register] = current[register] = self._node(register)
            after = {}
            for register in definitions(instruction):
                if register in self.bit:
                    if instruction.guard is None:
                        current[register] = self._node(register)
                    after[register] = current[register]
            marks.append((before, after))
        at_end = {register: current[register] for register in _at_end(block) if register in current}
        for target in block.targets:
            for register, node in self.entries[target].items():
                a, b = self._find(node), self._find(current[register])
                if a != b:
                    self.parents[a] = b
        return marks, at_end


def _at_end(block: Block) -> list[Register]:
    """What a block's branch or barrier reads."""
    found = list(registers_of([block.condition])) if block.condition is not None else []
    if block.final is not None:
        found += registers_of(block.final.operands)
    return found


def _rewritten(
    block: Block,
    marks: Sequence[tuple[dict[Register, int], dict[Register, int]]],
    at_end: dict[Register, int],
    register_of: Callable[[int], Register],
) -> Block:
    instructions = [
        _renamed(instruction, before, after, register_of) if before or after else instruction
        for instruction, (before, after) in zip(block.instructions, marks, strict=True)
    ]
    end = {register: register_of(node) for register, node in at_end.items()}
    found = with_registers(block.condition, end)
    condition = found if isinstance(found, Register | Negated) else None
    final = block.final
    if final is not None:
        operands = tuple(with_registers(operand, end) for operand in final.operands)
        final = replace(final, operands=operands, guard=condition)
    return replace(block, instructions=instructions, condition=condition, final=final)


def _renamed(
    instruction: Instruction,
    before: dict[Register, int],
    after: dict[Register, int],
    register_of: Callable[[int], Register],
) -> Instruction:
    read = {register: register_of(node) for register, node in before.items()}
    operands = instruction.operands
    if after:
        written = {register: register_of(node) for register, node in after.items()}
        renamed = (
            with_registers(operands[0], written),
            *(with_registers(operand, read) for operand in operands[1:]),
        )
    else:
        renamed = tuple(with_registers(operand, read) for operand in operands)
        if definitions(instruction):
            renamed = (operands[0], *renamed[1:])
    guard = with_registers(instruction.guard, read)
    return Instruction(
        instruction.opcode,
        renamed,
        guard if isinstance(guard, Register | Negated) else None,
        instruction.line,
    )


def with_registers(operand: Operand | None, names: dict[Register, Register]) -> Operand | None:
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
