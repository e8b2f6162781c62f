"""A function's machine code: instructions, their execution units, basic blocks, control flow and natural loops."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import and_

INSTRUCTION_BYTES = 16

NO_BARRIER = 7


class Pipe(enum.StrEnum):
    """The execution unit that an instruction is issued to."""

    FMA = "fma"
    ALU = "alu"
    SPECIAL = "special functions"
    FP64 = "fp64"
    TENSOR = "tensor"
    LSU = "lsu"
    UNIFORM = "uniform"
    CONTROL = "control"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. `line` is the kernel's source line, None for code from a header.

    `ptx_line` is the PTX line that it was made from, `target` the address of the label that it branches to, `stall`
    the cycles until the warp may issue again. `sets_on_write` and `sets_on_read` are the scoreboards that it releases
    when its result is written or its operands are read, `waits` those it waits for.
    """

    address: int
    predicate: str
    opcode: str
    operands: str
    line: int | None
    ptx_line: int | None
    target: int | None
    stall: int
    sets_on_write: int
    sets_on_read: int
    waits: tuple[int, ...]

    @property
    def mnemonic(self) -> str:
        return self.opcode.partition(".")[0]

    @property
    def pipe(self) -> Pipe:
        """Instructions in no list are uniform if they begin with U, and integer or logic otherwise."""
        return _PIPE_OF.get(self.mnemonic, Pipe.UNIFORM if self.mnemonic.startswith("U") else Pipe.ALU)


_MNEMONICS: Mapping[Pipe, str] = {
    Pipe.FMA: "FFMA FADD FMUL FFMA32I FADD32I FMUL32I IMAD IMUL HFMA2 HADD2 HMUL2 IDP FSWZADD",
    Pipe.SPECIAL: "MUFU I2F F2I F2F FRND POPC FLO BREV I2I",
    Pipe.FP64: "DFMA DADD DMUL DSETP DMNMX",
    Pipe.TENSOR: "HMMA IMMA DMMA BMMA QMMA HGMMA IGMMA QGMMA BGMMA",
    Pipe.LSU: "LDG STG LDS STS LDL STL LD ST LDSM STSM ATOM ATOMG ATOMS RED REDG LDGSTS SHFL MATCH CCTL "
    "UBLKCP UTMALDG UTMASTG LDC",
    Pipe.CONTROL: "BRA BRX JMP JMX EXIT RET CALL BSSY BSYNC BREAK WARPSYNC BAR BMOV YIELD NOP DEPBAR "
    "LDGDEPBAR MEMBAR ERRBAR NANOSLEEP KILL BPT WARPGROUP ARRIVES SYNCS PREEXIT ACQBULK VOTE "
    "CS2R S2R",
    Pipe.UNIFORM: "R2UR S2UR",
}
_PIPE_OF = {mnemonic: pipe for pipe, mnemonics in _MNEMONICS.items() for mnemonic in mnemonics.split()}


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
    name: str
    instructions: tuple[Instruction, ...]

    @cached_property
    def blocks(self) -> tuple[BasicBlock, ...]:
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

    def code(self, block: int) -> Sequence[Instruction]:
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
    dominating = dominators(successors, predecessors)
    bodies: dict[int, set[int]] = {}
    for tail, following in successors.items():
        for header in following:
            if dominating[tail] >> header & 1:
                bodies.setdefault(header, {header}).update(_body(predecessors, header, tail))
    ordered = sorted(bodies.items(), key=lambda item: (-len(item[1]), item[0]))
    loops: list[Loop] = []
    for header, body in ordered:
        parent = next((i for i in reversed(range(len(loops))) if body < loops[i].blocks), None)
        loops.append(Loop(header, frozenset(body), parent))
    return tuple(loops)


def dominators(
    successors: Mapping[int, Sequence[int]], predecessors: Mapping[int, Sequence[int]]
) -> dict[int, int]:
    """The blocks that every way from block 0, the entry, to a block passes, itself included, as bits."""
    # In this order most are final after one pass.
    order = _postorder(successors)[-2::-1]
    found = {**dict.fromkeys(order, -1), 0: 1}
    changed = True
    while changed:
        before = dict(found)
        for block in order:
            found[block] = reduce(and_, (found[each] for each in predecessors[block])) | 1 << block
        changed = found != before
    return found


def _postorder(successors: Mapping[int, Sequence[int]]) -> list[int]:
    """The blocks that can be reached from block 0, in postorder of a depth-first search."""
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


def _body(predecessors: Mapping[int, Sequence[int]], header: int, tail: int) -> set[int]:
    found, waiting = {header}, [tail]
    while waiting:
        block = waiting.pop()
        if block not in found:
            found.add(block)
            waiting.extend(predecessors[block])
    return found
