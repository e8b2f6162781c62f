"""What counting needs of a kernel: the registers that addresses, predicates and barriers depend on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from mctskernel.profiling.emulator.codegen import TOUCHES_MEMORY
from mctskernel.profiling.emulator.control_flow import Block, all_of
from mctskernel.profiling.emulator.ptx import Address, Instruction, Register, Symbol, registers_of

PREDICATED = 8
"""Instructions that are predicated at most where a branch could skip them; ptxas takes about as many."""

Origins = Mapping[Register, frozenset[str]]


def address_slice(blocks: Sequence[Block]) -> tuple[set[Register], bool]:
    """Registers that addresses, predicates and barriers depend on, and whether stored values are among their sources.

    Flow-insensitive: a register needed anywhere is needed everywhere. Parameters are taken to point to different
    buffers, so that a store through one changes nothing that is loaded through another.
    """
    instructions = [i for block in blocks for i in all_of(block)]
    unwritten = _loads_of_unwritten_buffers(instructions)
    needed = {r for block in blocks if block.condition is not None for r in registers_of([block.condition])}
    through_memory = False
    for instruction in instructions:
        needed.update(registers_of(o for o in instruction.operands if isinstance(o, Address)))
        needed.update(registers_of([instruction.guard]))
        if instruction.opcode.startswith(("wmma.load", "wmma.store")):
            needed.update(registers_of(instruction.operands[2:]))
        if instruction.parts[0] in ("bar", "barrier", "cp", "contribute", "mbarrier"):
            needed.update(instruction.uses)
    changed = True
    while changed:
        before = (len(needed), through_memory)
        for instruction in instructions:
            base = instruction.parts[0]
            if needed.intersection(instruction.definitions):
                needed.update(instruction.uses)
                through_memory |= (
                    base in ("ld", "atom", "ldmatrix", "wmma") and id(instruction) not in unwritten
                )
            if through_memory and base in ("st", "atom", "red", "stmatrix", "wmma"):
                needed.update(instruction.uses)
        changed = before != (len(needed), through_memory)
    return needed, through_memory


def with_short_branches_predicated(blocks: Sequence[Block]) -> Sequence[Block]:
    """The kernel with a few instructions run by every lane where loaded values decide who would branch around them.

    So does ptxas, and it spares counting the values: the special cases of `logf`, say. Only where no address, predicate
    or barrier depends on what those instructions compute.
    """
    candidates = _short_branches(blocks)
    while candidates:
        predicated = [
            replace(block, end="jump", condition=None, final=None, targets=(candidates[block.number],))
            if block.number in candidates
            else block
            for block in blocks
        ]
        needed, _ = address_slice(predicated)
        wrong = {
            number
            for number, body in candidates.items()
            if any(needed.intersection(i.definitions) for i in blocks[body].instructions)
        }
        if not wrong:
            return predicated
        candidates = {number: body for number, body in candidates.items() if number not in wrong}
    return blocks


def _short_branches(blocks: Sequence[Block]) -> dict[int, int]:
    """Blocks that end in a branch on loaded values around a short block of arithmetic, with that block."""
    predecessors = Counter(target for block in blocks for target in set(block.targets))
    loaded = _loaded(blocks)
    found = {}
    for block in blocks:
        if block.end != "branch" or not loaded.intersection(registers_of([block.condition])):
            continue
        taken, other = block.targets
        for body, end in ((other, taken), (taken, other)):
            if (
                blocks[body].end == "jump"
                and blocks[body].targets == (end,)
                and predecessors[body] == 1
                and _is_short_arithmetic(blocks[body])
            ):
                found[block.number] = body
                break
    return found


def _is_short_arithmetic(block: Block) -> bool:
    return (
        len(block.instructions) <= PREDICATED
        and not block.warp_synchronous
        and not any(i.parts[0] in TOUCHES_MEMORY or i.guard is not None for i in block.instructions)
    )


def _loaded(blocks: Sequence[Block]) -> set[Register]:
    """Registers whose values depend on what is in memory."""
    instructions = [i for block in blocks for i in all_of(block)]
    found: set[Register] = set()
    changed = True
    while changed:
        before = len(found)
        for instruction in instructions:
            from_memory = instruction.parts[0] in TOUCHES_MEMORY and not instruction.opcode.startswith(
                "ld.param"
            )
            if from_memory or found.intersection(instruction.uses):
                found.update(instruction.definitions)
        changed = before != len(found)
    return found


def _loads_of_unwritten_buffers(instructions: Sequence[Instruction]) -> set[int]:
    """The identities of loads from where the kernel never stores."""
    origins = _origins(instructions)
    written = [
        _origin(instruction, origins)
        for instruction in instructions
        if instruction.parts[0] in ("st", "atom", "red", "wmma")
        and not instruction.opcode.startswith("wmma.load")
        and not {"shared", "local"} & {part.partition("::")[0] for part in instruction.parts}
        and any(isinstance(operand, Address) for operand in instruction.operands)
    ]
    anywhere = not all(written)
    stored = frozenset().union(*written)
    return {
        id(instruction)
        for instruction in instructions
        if instruction.opcode.startswith(("ld.param", "ld.const", "ld.global.nc"))
        or (
            instruction.opcode.startswith("ld.global")
            and not anywhere
            and (origin := _origin(instruction, origins))
            and not origin & stored
        )
    }


def _origin(instruction: Instruction, origins: Origins) -> frozenset[str]:
    """The parameters that an instruction's address is made from; empty where that isn't known."""
    bases = [operand.base for operand in instruction.operands if isinstance(operand, Address)]
    found: Collection[frozenset[str]] = [
        origins.get(base, frozenset()) for base in bases if isinstance(base, Register)
    ]
    return frozenset().union(*found) if len(found) == len(bases) else frozenset()


def _origins(instructions: Sequence[Instruction]) -> Origins:
    """The 64-bit parameters that each register is computed from, not counting what was loaded elsewhere."""
    found: dict[Register, frozenset[str]] = {}
    changed = True
    while changed:
        changed = False
        for instruction in instructions:
            source = _parameter_of(instruction)
            if source is None and instruction.parts[0] in TOUCHES_MEMORY:
                continue
            origin = source or frozenset().union(*(found.get(r, frozenset()) for r in instruction.uses))
            for register in instruction.definitions:
                if not origin <= found.get(register, frozenset()):
                    found[register] = found.get(register, frozenset()) | origin
                    changed = True
    return found


def _parameter_of(instruction: Instruction) -> frozenset[str] | None:
    """The parameter that an instruction loads, if it may be a pointer."""
    if not instruction.opcode.startswith("ld.param"):
        return None
    if instruction.parts[-1] not in ("u64", "s64", "b64"):
        return frozenset()
    source = instruction.operands[1]
    name = source.base.name if isinstance(source, Address) and isinstance(source.base, Symbol) else ""
    return frozenset({name})
