"""What of a kernel must be computed to count it, and which decisions depend on data that counting does without."""

from __future__ import annotations

import enum
import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from mctskernel.profiling.emulator.control_flow import Block
from mctskernel.profiling.emulator.ptx import (
    Address,
    Immediate,
    Instruction,
    Operand,
    Register,
    registers_of,
)
from mctskernel.profiling.machine_code.values import Values, joined


class Knowledge(enum.IntEnum):
    """How far a value follows from the launch: entirely; with integers from memory; with floats; not at all."""

    LAUNCH = 0
    CONTENTS = 1
    COMPUTED = 2
    UNKNOWN = 3


class UncomputableError(Exception):
    """An address depends on what isn't computed: `index` is the machine instruction that it comes from."""

    def __init__(self, index: int) -> None:
        super().__init__(str(index))
        self.index = index


@dataclass(frozen=True)
class Decision:
    """A branch or a predicated access whose predicate isn't computed: its block and its machine instruction."""

    block: int
    index: int


@dataclass(frozen=True)
class Relevant:
    """The code that counting runs. `decisions` are answered by the caller, in the order of their numbers."""

    blocks: list[Block]
    needed: frozenset[Register]
    decisions: tuple[Decision, ...]
    through_shared: bool


def relevant(code: Values) -> Relevant:
    """Drop what no address and no predicate of an access or a branch depends on.

    Addresses are computed whatever they take. Predicates that depend on floating-point data, or on results of tensor
    instructions, become decisions. Raises UncomputableError for an address that can't be computed.
    """
    return _Analysis(code).result()


_ORDINALS = 1 << 28
_LOADS = ("ld", "atom")
_STORES = ("st", "atom", "red", "cp")
_MEMORY = ("ld", "st", "atom", "red", "cp")
_FLOAT_TYPES = ("f32", "f64")


@dataclass(frozen=True, slots=True)
class _Step:
    """How an instruction passes knowledge on: the least level of its result, and where it takes more from."""

    least: Knowledge
    floating: bool
    from_shared: bool

    @classmethod
    def of(cls, instruction: Instruction) -> _Step:
        parts = instruction.parts
        if parts[0] == "opaque":
            return cls(Knowledge.UNKNOWN, floating=False, from_shared=False)
        if parts[0] not in _LOADS:
            return cls(Knowledge.LAUNCH, floating=_is_float(parts), from_shared=False)
        floating = parts[0] == "atom" and parts[-1] in _FLOAT_TYPES
        return cls(
            Knowledge.COMPUTED if floating else Knowledge.CONTENTS,
            floating=False,
            from_shared=_reads_shared(instruction),
        )

    def level(self, read: Knowledge, stored: Knowledge) -> Knowledge:
        """The level of the result, given those of the operands and of what is stored in shared memory."""
        if read is Knowledge.CONTENTS and self.floating:
            return Knowledge.COMPUTED
        return max(self.least, read, stored if self.from_shared else Knowledge.LAUNCH)


class _Analysis:
    def __init__(self, code: Values) -> None:
        self.blocks = code.blocks
        self.meetings = code.meetings
        self.definers: dict[Register, list[Instruction]] = {
            value: [Instruction("meeting", (value, *arriving))] for value, arriving in code.meetings.items()
        }
        self.shared_stores: list[Instruction] = []
        self.memory: list[Instruction] = []
        for block in self.blocks:
            for instruction in block.instructions:
                base = instruction.opcode.partition(".")[0]
                for register in instruction.definitions:
                    self.definers.setdefault(register, []).append(instruction)
                if base in _MEMORY:
                    self.memory.append(instruction)
                    if (
                        base in _STORES
                        and ".global" not in instruction.opcode
                        and ".local" not in instruction.opcode
                    ):
                        self.shared_stores.append(instruction)
        self.levels: dict[Register, Knowledge] = {}

    def result(self) -> Relevant:
        hard = {r for i in self.memory for r in _address_registers(i)}
        soft: set[Register] = set()
        for instruction in self.memory:
            soft.update(registers_of([instruction.guard]))
            if instruction.opcode.startswith("cp."):
                soft.update(registers_of(instruction.operands[2:]))
        for block in self.blocks:
            if block.end == "barrier" and block.final is not None:
                hard.update(registers_of(block.final.operands))
            if block.condition is not None:
                soft.update(registers_of([block.condition]))
        self._rank(hard | soft)
        for register in hard:
            if self._level(register) is Knowledge.UNKNOWN:
                raise UncomputableError(self._source(register))
        open_ = {r for r in soft if self._level(r) >= Knowledge.COMPUTED}
        blocks, decisions = self._decided(open_)
        needed, through_shared = self._slice(hard | (soft - open_))
        asked = {
            r
            for b in blocks
            for i in b.instructions
            if i.opcode in {"decide", "unresolved"}
            for r in i.definitions
        }
        kept, needed = joined(
            _kept(blocks, needed, through_shared=through_shared), needed | asked, self.meetings
        )
        return Relevant(kept, needed, decisions, through_shared)

    def _level(self, register: Register) -> Knowledge:
        return self.levels.get(register, Knowledge.LAUNCH)

    def _closure(self, roots: set[Register]) -> tuple[set[Register], bool]:
        """Registers that the roots are made from, and whether shared memory is on the way."""
        found, waiting = set(roots), list(roots)
        through_shared = False

        def add(registers: Iterable[Register]) -> None:
            for register in registers:
                if register not in found:
                    found.add(register)
                    waiting.append(register)

        while waiting:
            for instruction in self.definers.get(waiting.pop(), ()):
                add(instruction.uses)
                if not through_shared and _reads_shared(instruction):
                    through_shared = True
                    for store in self.shared_stores:
                        add(store.uses)
        return found, through_shared

    def _rank(self, roots: set[Register]) -> None:
        """Find the level of all that the roots are made from, as the least that agrees with every instruction."""
        closure, through_shared = self._closure(roots)
        instructions = {id(i): i for register in closure for i in self.definers.get(register, ())}
        steps = [(_Step.of(i), i.uses, i.definitions) for i in instructions.values()]
        kept = (
            {r for store in self.shared_stores for r in _values(store)} if through_shared else set[Register]()
        )
        readers: dict[Register, list[int]] = {}
        for number, (_, read, _) in enumerate(steps):
            for register in read:
                readers.setdefault(register, []).append(number)
        from_shared = [number for number, (step, _, _) in enumerate(steps) if step.from_shared]
        levels, launch = self.levels, Knowledge.LAUNCH
        stored = launch
        waiting = deque(range(len(steps)))
        while waiting:
            step, read, written = steps[waiting.popleft()]
            level = step.level(max((levels.get(r, launch) for r in read), default=launch), stored)
            for register in written:
                if level > levels.get(register, launch):
                    levels[register] = level
                    waiting.extend(readers.get(register, ()))
                    if register in kept and level > stored:
                        stored = level
                        waiting.extend(from_shared)

    def _source(self, register: Register) -> int:
        """The first machine instruction that makes an address unknown."""
        closure, _ = self._closure({register})
        return min(i.line or 0 for r in closure for i in self.definers.get(r, ()) if i.opcode == "opaque")

    def _decided(self, open_: set[Register]) -> tuple[list[Block], tuple[Decision, ...]]:
        """Predicates that stay open replaced by the answer of a numbered question."""
        decisions: list[Decision] = []
        ordinals = itertools.count(_ORDINALS)

        def ask(block: Block, index: int | None) -> tuple[Instruction, Register]:
            register = Register(next(ordinals), "pred")
            number = Immediate(len(decisions), "int")
            decisions.append(Decision(block.number, index or 0))
            return Instruction("decide", (register, number), None, index), register

        found = []
        for block in self.blocks:
            instructions: list[Instruction] = []
            for instruction in block.instructions:
                changed = instruction
                if instruction.opcode.partition(".")[0] in _MEMORY:
                    if instruction.guard is not None and open_.intersection(
                        registers_of([instruction.guard])
                    ):
                        question, answer = ask(block, instruction.line)
                        instructions.append(question)
                        changed = replace(changed, guard=answer)
                    if changed.opcode.startswith("cp.") and open_.intersection(
                        registers_of(changed.operands[2:])
                    ):
                        changed = replace(changed, operands=(*changed.operands[:2], Immediate(1, "int")))
                instructions.append(changed)
            condition, final = block.condition, block.final
            if condition is not None and final is not None and open_.intersection(registers_of([condition])):
                question, condition = ask(block, final.line)
                final = replace(final, guard=condition)
                instructions.append(question)
            found.append(replace(block, instructions=instructions, condition=condition, final=final))
        return found, tuple(decisions)

    def _slice(self, roots: set[Register]) -> tuple[frozenset[Register], bool]:
        needed, through_shared = self._closure(roots)
        return frozenset(r for r in needed if self._level(r) is not Knowledge.UNKNOWN), through_shared


def _reads_shared(instruction: Instruction) -> bool:
    parts = instruction.parts
    return parts[0] in _LOADS and "global" not in parts and "local" not in parts


def _is_float(parts: Sequence[str]) -> bool:
    return parts[-1] in _FLOAT_TYPES or (len(parts) > 2 and parts[-2] in _FLOAT_TYPES)


def _address_registers(instruction: Instruction) -> Iterable[Register]:
    return registers_of(o for o in instruction.operands if isinstance(o, Address))


def _values(instruction: Instruction) -> Iterable[Register]:
    """The registers whose contents a store writes."""
    written = {r for o in instruction.operands if isinstance(o, Address) for r in registers_of([o])}
    own = set(instruction.definitions)
    return [r for r in registers_of(instruction.operands) if r not in written and r not in own]


def _kept(blocks: Sequence[Block], needed: frozenset[Register], *, through_shared: bool) -> list[Block]:
    """Only what is needed; stores keep their values where loads of shared memory want them."""
    found = []
    for block in blocks:
        instructions = []
        for instruction in block.instructions:
            base = instruction.opcode.partition(".")[0]
            if base in _MEMORY:
                instructions.append(_slim(instruction, needed, through_shared=through_shared))
            elif base in {"decide", "unresolved"} or (
                base != "opaque" and needed.intersection(instruction.definitions)
            ):
                instructions.append(instruction)
        found.append(replace(block, instructions=instructions))
    return found


def _slim(instruction: Instruction, needed: frozenset[Register], *, through_shared: bool) -> Instruction:
    base = instruction.opcode.partition(".")[0]
    if base == "ld":
        if needed.intersection(instruction.definitions):
            return instruction
        return replace(instruction, operands=(None, instruction.operands[1]))
    if base == "st" and not (
        through_shared and ".global" not in instruction.opcode and _known(instruction, needed)
    ):
        return replace(instruction, operands=(instruction.operands[0], None))
    if base in {"atom", "red"}:
        return _slim_atomic(instruction, needed, through_shared=through_shared)
    return instruction


def _known(instruction: Instruction, needed: frozenset[Register]) -> bool:
    return all(register in needed for register in _values(instruction))


def _slim_atomic(
    instruction: Instruction, needed: frozenset[Register], *, through_shared: bool
) -> Instruction:
    wanted = bool(needed.intersection(instruction.definitions))
    wanted |= through_shared and ".global" not in instruction.opcode and _known(instruction, needed)
    if wanted:
        return instruction
    opcode = "red" + instruction.opcode[instruction.opcode.index(".") :]
    address = next(o for o in instruction.operands if isinstance(o, Address))
    values: tuple[Operand | None, ...] = (None,)
    return replace(instruction, opcode=opcode, operands=(address, *values))
