"""Predicated instructions whose results nobody reads otherwise than under the same predicate.

`@P0 LDG R3, ...` keeps what R3 held where P0 is false. Where all that follows asks P0 first, that value is of no
interest to anybody, and what R3 held before has nothing to do with what it holds then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from mctskernel.profiling.emulator.control_flow import Block, definitions, uses
from mctskernel.profiling.emulator.ptx import Immediate, Instruction, Negated, Register

_MEMORY = ("ld", "atom")

Guard = Register | Negated


def without_idle_guards(
    block: Block,
    guards: Mapping[int, Guard | None],
    live_out: Collection[Register],
) -> list[Instruction]:
    """A block's instructions, unconditional where that makes no difference.

    `guards` gives the predicate of the machine instruction that each lowered one belongs to. Loads keep
    theirs, and begin with a register that holds nothing.
    """
    code = block.instructions
    last_reads = set(uses(block.final)) if block.final is not None else set()
    found: list[Instruction] = []
    for position, instruction in enumerate(code):
        guard = instruction.guard
        targets = definitions(instruction)
        if (
            guard is None
            or not targets
            or not all(
                _is_idle(
                    target, guard, code[position + 1 :], guards, target in live_out or target in last_reads
                )
                for target in targets
            )
        ):
            found.append(instruction)
        elif instruction.opcode.partition(".")[0] in _MEMORY:
            kinds = ((t, "mov.pred" if t.type == "pred" else "mov.b32") for t in targets)
            found.extend(
                Instruction(opcode, (target, Immediate(0, "int")), None, instruction.line)
                for target, opcode in kinds
            )
            found.append(instruction)
        else:
            found.append(replace(instruction, guard=None))
    return found


def _is_idle(
    target: Register,
    guard: Guard,
    following: Sequence[Instruction],
    guards: Mapping[int, Guard | None],
    live: bool,  # noqa: FBT001
) -> bool:
    """Whether `target` is read under the guard only, until it is written anew."""
    predicate = guard.register if isinstance(guard, Negated) else guard
    opposite = guard.register if isinstance(guard, Negated) else Negated(guard)
    for instruction in following:
        own = guards.get(instruction.line or 0)
        written = definitions(instruction)
        reads = [r for r in uses(instruction) if r is target]
        if target in written and instruction.guard is not None:
            reads = reads[1:]  # a guarded write counts as a read of what it keeps
        if reads and own != guard:
            return False
        if target in written and (instruction.guard is None or own in (guard, opposite)):
            return True
        if predicate in written:
            # From here on the predicate says something else.
            guard = _NOBODY
            opposite = _NOBODY
    return not live


_NOBODY = Register(-3, "pred")
