"""A function's machine code with its control flow: basic blocks, what follows what, natural loops."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import networkx as nx

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
    def graph(self) -> nx.DiGraph:
        """Which block may follow which; only those that can be reached from the entry."""
        return _control_flow(self.instructions, self.blocks)

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """Natural loops, outer ones before those inside them."""
        return _natural_loops(self.graph)

    @cached_property
    def innermost(self) -> Mapping[int, int | None]:
        """For each reachable block, the index of the innermost loop around it."""
        inside: dict[int, int | None] = dict.fromkeys(self.graph.nodes)
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
        return Counter(i.pipe for block in self.graph.nodes for i in self.code(block) if i.mnemonic != "NOP")

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


def _control_flow(code: Sequence[Instruction], blocks: Sequence[BasicBlock]) -> nx.DiGraph:
    graph: nx.DiGraph = nx.DiGraph()
    graph.add_nodes_from(range(len(blocks)))
    at = {block.first: index for index, block in enumerate(blocks)}
    for index, block in enumerate(blocks):
        last = code[block.last - 1]
        target = _target(last)
        if target is not None and target in at:
            graph.add_edge(index, at[target])
        falls_through = last.mnemonic not in _ENDS or _conditional(last)
        if falls_through and index + 1 < len(blocks):
            graph.add_edge(index, index + 1)
    reachable = {0} | nx.descendants(graph, 0)
    result: nx.DiGraph = graph.subgraph(sorted(reachable)).copy()
    return result


def _conditional(branch: Instruction) -> bool:
    """Whether a branch may not be taken: by its predicate, or by a predicate among its operands."""
    return branch.predicate not in {"", "PT"} or re.match(r"!?U?P\d", branch.operands) is not None


def _natural_loops(graph: nx.DiGraph) -> tuple[Loop, ...]:
    dominators = nx.immediate_dominators(graph, 0)
    bodies: dict[int, set[int]] = {}
    for tail, header in graph.edges:
        if _dominates(header, tail, dominators):
            bodies.setdefault(header, {header}).update(_body(graph, header, tail))
    ordered = sorted(bodies.items(), key=lambda item: (-len(item[1]), item[0]))
    loops: list[Loop] = []
    for header, body in ordered:
        parent = next((i for i in reversed(range(len(loops))) if body < loops[i].blocks), None)
        loops.append(Loop(header, frozenset(body), parent))
    return tuple(loops)


def _dominates(block: int, other: int, dominators: Mapping[int, int | None]) -> bool:
    at: int | None = other
    while at is not None and at != block:
        above = dominators.get(at)
        at = above if above != at else None
    return at == block


def _body(graph: nx.DiGraph, header: int, tail: int) -> set[int]:
    found, waiting = {header}, [tail]
    while waiting:
        block = waiting.pop()
        if block not in found:
            found.add(block)
            waiting.extend(graph.predecessors(block))
    return found
