"""A function's machine code with its control flow: basic blocks, what follows what, natural loops."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from mctskernel.profiling.machine_code.cubin import INSTRUCTION_BYTES
from mctskernel.profiling.machine_code.instructions import Instruction, Pipe


@dataclass(frozen=True)
class BasicBlock:
    """Instructions `first` to `last - 1` of their function, entered at the top and left at the bottom."""

    first: int
    last: int


@dataclass(frozen=True)
class Loop:
    """A natural loop: its header and all of its blocks, nested ones included. `parent` indexes the loops."""

    header: int
    blocks: frozenset[int]
    parent: int | None


@dataclass(frozen=True)
class Function:
    """One function's machine code."""

    name: str
    instructions: tuple[Instruction, ...]

    @cached_property
    def blocks(self) -> tuple[BasicBlock, ...]:
        """Basic blocks in order of address."""
        starts = sorted(_leaders(self.instructions))
        ends = [*starts[1:], len(self.instructions)]
        return tuple(BasicBlock(first, last) for first, last in zip(starts, ends, strict=True))

    @cached_property
    def successors(self) -> Mapping[int, tuple[int, ...]]:
        """Which blocks may follow each of those that can be reached from the entry, in order of address."""
        return _control_flow(self.instructions, self.blocks)

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """Natural loops, outer ones before those inside them."""
        return natural_loops(self.successors)

    @cached_property
    def innermost(self) -> Mapping[int, int | None]:
        """For each reachable block, the index of the innermost loop around it."""
        inside: dict[int, int | None] = dict.fromkeys(self.successors)
        for index, loop in enumerate(self.loops):
            inside.update(dict.fromkeys(loop.blocks, index))
        return inside

    @cached_property
    def blocks_by_loop(self) -> Mapping[int | None, tuple[tuple[int, int | None], ...]]:
        """For each loop, and None for what is in no loop, what it holds directly, in order of address.

        Each entry is a block and None, or the header of a nested loop and that loop's index.
        """
        inside: dict[int | None, list[tuple[int, int | None]]] = {}
        for block, around in self.innermost.items():
            inside.setdefault(around, []).append((block, None))
        for index, nested in enumerate(self.loops):
            inside.setdefault(nested.parent, []).append((nested.header, index))
        return {loop: tuple(sorted(found, key=lambda entry: entry[0])) for loop, found in inside.items()}

    def mix(self) -> Counter[Pipe]:
        """How many reachable instructions go to each pipe, each counted once."""
        return Counter(i.pipe for block in self.successors for i in self.code(block) if i.mnemonic != "NOP")

    def code(self, block: int) -> Sequence[Instruction]:
        """A block's instructions."""
        span = self.blocks[block]
        return self.instructions[span.first : span.last]


_ENDS = frozenset({"EXIT", "RET", "BRA", "BRX", "JMP", "JMX", "BRXU", "KILL"})


def _target(instruction: Instruction) -> int | None:
    """Where a branch goes, as an index of its function's instructions."""
    if instruction.mnemonic not in {"BRA", "JMP"} or instruction.target is None:
        return None
    return instruction.target // INSTRUCTION_BYTES


def _leaders(code: Sequence[Instruction]) -> set[int]:
    leaders = {0}
    for index, instruction in enumerate(code):
        if instruction.mnemonic not in _ENDS:
            continue
        target = _target(instruction)
        leaders.update(at for at in (index + 1, target) if at is not None and at < len(code))
    return leaders


def _control_flow(code: Sequence[Instruction], blocks: Sequence[BasicBlock]) -> dict[int, tuple[int, ...]]:
    at = {block.first: index for index, block in enumerate(blocks)}
    following: dict[int, tuple[int, ...]] = {}
    for index, block in enumerate(blocks):
        last = code[block.last - 1]
        target = _target(last)
        taken = [at[target]] if target is not None and target in at else []
        falls_through = last.mnemonic not in _ENDS or _conditional(last)
        if falls_through and index + 1 < len(blocks):
            taken.append(index + 1)
        following[index] = tuple(dict.fromkeys(taken))
    return {index: following[index] for index in sorted(_postorder(following))}


def _conditional(branch: Instruction) -> bool:
    """Whether a branch may not be taken: by its predicate, or by a predicate among its operands."""
    return branch.predicate not in {"", "PT"} or re.match(r"!?U?P\d", branch.operands) is not None


def natural_loops(successors: Mapping[int, Sequence[int]]) -> tuple[Loop, ...]:
    """The natural loops of a control flow that is entered at block 0, outer ones before those inside them."""
    predecessors: dict[int, list[int]] = {block: [] for block in successors}
    for block, following in successors.items():
        for each in following:
            predecessors[each].append(block)
    dominators = immediate_dominators(successors, predecessors)
    bodies: dict[int, set[int]] = {}
    for tail, following in successors.items():
        for header in following:
            if _dominates(header, tail, dominators):
                bodies.setdefault(header, {header}).update(_body(predecessors, header, tail))
    ordered = sorted(bodies.items(), key=lambda item: (-len(item[1]), item[0]))
    loops: list[Loop] = []
    for header, body in ordered:
        parent = next((i for i in reversed(range(len(loops))) if body < loops[i].blocks), None)
        loops.append(Loop(header, frozenset(body), parent))
    return tuple(loops)


def immediate_dominators(
    successors: Mapping[int, Sequence[int]], predecessors: Mapping[int, Sequence[int]]
) -> dict[int, int]:
    """The last block that every way to a block leads through, by block; block 0, the entry, has itself.

    Cooper, Harvey and Kennedy, "A simple, fast dominance algorithm" (2001). networkx has it too, but to import it
    takes a third of the time in which a worker starts.
    """
    order = {block: number for number, block in enumerate(_postorder(successors))}
    found = {0: 0}
    changed = True
    while changed:
        changed = False
        for block in sorted(order.keys() - {0}, key=order.__getitem__, reverse=True):
            nearest, *others = (each for each in predecessors[block] if each in found)
            for other in others:
                while nearest != other:
                    if order[nearest] < order[other]:
                        nearest = found[nearest]
                    else:
                        other = found[other]  # noqa: PLW2901 - both climb until they meet
            changed = changed or found.get(block) != nearest
            found[block] = nearest
    return found


def _postorder(successors: Mapping[int, Sequence[int]]) -> list[int]:
    """What can be reached from block 0, each after all that a search in depth finds behind it."""
    finished: list[int] = []
    seen, path = {0}, [(0, iter(successors[0]))]
    while path:
        block, following = path[-1]
        unseen = next((each for each in following if each not in seen), None)
        if unseen is None:
            finished.append(block)
            path.pop()
        else:
            seen.add(unseen)
            path.append((unseen, iter(successors[unseen])))
    return finished


def _dominates(block: int, other: int, dominators: Mapping[int, int]) -> bool:
    while other not in (block, dominators[other]):
        other = dominators[other]
    return other == block


def _body(predecessors: Mapping[int, Sequence[int]], header: int, tail: int) -> set[int]:
    found, waiting = {header}, [tail]
    while waiting:
        block = waiting.pop()
        if block not in found:
            found.add(block)
            waiting.extend(predecessors[block])
    return found
