"""Predicated instructions whose results nobody reads otherwise than under the same predicate.

`@P0 LDG R3, ...` keeps what R3 held where P0 is false. Where all that follows asks P0 first, that value is of no
interest to anybody, and what R3 held before has nothing to do with what it holds then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mctskernel.profiling.emulator.control_flow import Block
from mctskernel.profiling.emulator.ptx import Immediate, Instruction, Negated, Register

Guard = Register | Negated

_MEMORY = ("ld", "atom")
_BLOCKS_AHEAD = 24


@dataclass(frozen=True)
class Predication:
    """The code in which idle guards are looked for.

    `guards` gives the predicate of the machine instruction that each lowered one belongs to; `live` says whether
    a register's value is wanted at the start of a block.
    """

    blocks: Sequence[Block]
    guards: Mapping[int, Guard | None]
    live: Callable[[int, Register], bool]

    def without_idle_guards(self, block: Block) -> Block:
        """The block with its instructions unconditional where that makes no difference.

        Loads keep their predicate, and begin with a register that holds nothing.
        """
        if not any(instruction.guard is not None for instruction in block.instructions):
            return block
        found: list[Instruction] = []
        for position, instruction in enumerate(block.instructions):
            guard, targets = instruction.guard, instruction.definitions
            if (
                guard is None
                or not targets
                or not all(self._is_idle(target, guard, block, position + 1) for target in targets)
            ):
                found.append(instruction)
            elif instruction.opcode.partition(".")[0] in _MEMORY:
                found += [_cleared(target, instruction.line) for target in targets]
                found.append(instruction)
            else:
                found.append(replace(instruction, guard=None))
        return replace(block, instructions=found)

    def _is_idle(self, target: Register, guard: Guard, block: Block, position: int) -> bool:
        """Whether `target` is read under the guard only, until it is written anew, whatever way is taken."""
        waiting: list[tuple[Block, int, Guard | None]] = [(block, position, guard)]
        seen: set[tuple[int, bool]] = set()
        while waiting:
            here, start, valid = waiting.pop()
            verdict, valid = self._read_on(target, valid, here.instructions[start:])
            if verdict is not None:
                if not verdict:
                    return False
                continue
            final = here.final
            if final is not None and any(register is target for register in final.uses):
                return False
            for side, following in enumerate(here.targets):
                if _holds_on(side, here, valid) or not self.live(following, target):
                    continue
                state = (following, valid is not None)
                if state not in seen:
                    seen.add(state)
                    waiting.append((self.blocks[following], 0, valid))
            if len(seen) > _BLOCKS_AHEAD:
                return False
        return True

    def _read_on(
        self, target: Register, guard: Guard | None, code: Sequence[Instruction]
    ) -> tuple[bool | None, Guard | None]:
        """The verdict of straight code, None where it goes on after it; and the guard, None once it was changed."""
        for instruction in code:
            own = self.guards.get(instruction.line or 0)
            written = instruction.definitions
            reads = sum(register is target for register in instruction.uses)
            if instruction.guard is not None and target in written:
                reads -= 1  # it reads what it keeps
            if reads > 0 and (guard is None or own != guard):
                return False, guard
            if target in written and (
                instruction.guard is None or (guard is not None and own in {guard, _opposite(guard)})
            ):
                return True, guard
            if guard is not None and _register(guard) in written:
                guard = None
        return None, guard


def _holds_on(side: int, block: Block, guard: Guard | None) -> bool:
    """Whether the guard is true of every thread that leaves a block by one of its targets."""
    if guard is None or block.end != "branch" or block.condition is None:
        return False
    return block.condition == (guard if side == 0 else _opposite(guard))


def _register(guard: Guard) -> Register:
    return guard.register if isinstance(guard, Negated) else guard


def _opposite(guard: Guard) -> Guard:
    return guard.register if isinstance(guard, Negated) else Negated(guard)


def _cleared(target: Register, line: int | None) -> Instruction:
    opcode = "mov.pred" if target.type == "pred" else "mov.b32"
    return Instruction(opcode, (target, Immediate(0, "int")), None, line)
