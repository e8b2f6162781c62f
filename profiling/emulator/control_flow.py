"""Basic blocks of a kernel entry: device functions inlined, and liveness."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mctskernel.profiling.emulator.ptx import (
    SIZES,
    Address,
    Arguments,
    BranchTargets,
    Function,
    Immediate,
    Instruction,
    Label,
    Module,
    Negated,
    Operand,
    Pair,
    Register,
    Statement,
    Symbol,
    UnsupportedPtxError,
    Vector,
)

ENDS_BLOCK = frozenset("bra brx ret exit trap bar barrier".split())
WARP_SYNCHRONOUS = frozenset("shfl vote match redux mma wmma ldmatrix stmatrix activemask".split())
MAX_INLINED = 200_000
_BARRIER_REDUCTION = re.compile(r"(?:bar|barrier)(?:\.cta)?\.red\.")


@dataclass
class Block:
    """Straight-line code and how it ends; `targets` are the next block's number, or (taken, not taken)."""

    number: int
    instructions: list[Instruction]
    end: str = "jump"
    condition: Register | Negated | None = None
    targets: tuple[int, ...] = ()
    final: Instruction | None = None
    live_in: frozenset[Register] = frozenset()
    live_out: frozenset[Register] = frozenset()

    @property
    def warp_synchronous(self) -> bool:
        return any(
            i.parts[0] in WARP_SYNCHRONOUS or i.opcode.startswith(("bar.warp", "barrier.warp"))
            for i in self.instructions
        )


def control_flow(module: Module, function: Function) -> list[Block]:
    """Blocks of an entry in textual order, the empty exit block last; raises `UnsupportedPtxError`."""
    blocks = _blocks(_Inliner(module).expand(function, {}, frozenset({function.name})))
    liveness(blocks)
    return blocks


@dataclass(frozen=True)
class _Body:
    """A function that is inlined, the entry or one it calls: what its names become.

    `renamed` are parameter variables of the caller, `active` the functions that are being inlined, `formal` the
    entry's own parameters.
    """

    renamed: Mapping[str, str]
    active: frozenset[str]
    formal: frozenset[str]
    suffix: str


class _Inliner:
    """Replaces calls by the bodies of the functions called; parameter variables become registers."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.ordinals = itertools.count()
        self.labels = itertools.count()
        self.slots: dict[tuple[str, int], Register] = {}
        self.length = 0

    def fresh(self, type_: str) -> Register:
        return Register(next(self.ordinals), type_)

    def expand(
        self, function: Function, renamed: Mapping[str, str], active: frozenset[str]
    ) -> list[Statement]:
        registers: dict[Register, Register] = {}
        suffix = f"@{next(self.labels)}"
        formal = frozenset(p.name for p in function.parameters) if len(active) == 1 else frozenset()
        body = _Body(renamed, active, formal, suffix)

        def register(old: Register) -> Register:
            if old not in registers:
                registers[old] = self.fresh(old.type)
            return registers[old]

        out: list[Statement] = []
        for statement in function.body:
            if isinstance(statement, Label):
                out.append(Label(statement.name + suffix))
            elif isinstance(statement, BranchTargets):
                out.append(
                    BranchTargets(statement.name + suffix, tuple(n + suffix for n in statement.labels))
                )
            else:
                out.extend(self._one(_rename(statement, register, suffix), body))
            self.length += 1
            if self.length > MAX_INLINED:
                raise UnsupportedPtxError("inlining device functions grows without bound")
        out.append(Label("end" + suffix))
        return out

    def _one(self, instruction: Instruction, body: _Body) -> Iterator[Statement]:
        base = instruction.parts[0]
        if base == "call":
            yield from self._call(instruction, body)
        elif base == "ret" and len(body.active) > 1:
            yield replace(instruction, opcode="bra", operands=(Symbol("end" + body.suffix),))
        elif instruction.opcode.startswith(("ld.param", "st.param")):
            yield from self._parameter(instruction, body)
        else:
            yield instruction

    def _parameter(self, instruction: Instruction, body: _Body) -> Iterator[Statement]:
        load = instruction.opcode.startswith("ld")
        address = instruction.operands[0 if not load else 1]
        if not isinstance(address, Address) or not isinstance(address.base, Symbol):
            raise UnsupportedPtxError(instruction.opcode + " with a computed address", instruction.line)
        if address.base.name in body.formal:
            yield instruction
            return
        name = body.renamed.get(address.base.name, address.base.name + body.suffix)
        type_ = instruction.parts[-1]
        value = instruction.operands[0 if load else 1]
        elements = value.elements if isinstance(value, Vector) else (value,)
        for position, element in enumerate(elements):
            key = (name, address.base.offset + address.offset + position * SIZES[type_])
            slot = self.slots.setdefault(key, self.fresh("b" + str(8 * SIZES[type_])))
            if SIZES[slot.type] != SIZES[type_]:
                raise UnsupportedPtxError("parameter read with another size", instruction.line)
            operands = (element, slot) if load else (slot, element)
            yield replace(instruction, opcode=f"mov.b{8 * SIZES[type_]}", operands=operands)

    def _call(self, instruction: Instruction, body: _Body) -> Iterator[Statement]:
        lists = [o.names for o in instruction.operands if isinstance(o, Arguments)]
        target = next((o.name for o in instruction.operands if isinstance(o, Symbol)), None)
        if target in _OF_THE_DRIVER:
            yield from self._of_the_driver(instruction, target, lists, body.suffix)
            return
        callee = self.module.functions.get(target or "")
        if callee is None or target in body.active:
            what = "recursion through" if callee else "call of"
            raise UnsupportedPtxError(f"{what} {target or 'a function pointer'}", instruction.line)
        results = lists.pop(0) if callee.results and lists else ()
        arguments = lists.pop(0) if lists else ()
        skip = f"skip@{next(self.labels)}"
        if instruction.guard is not None:
            yield Instruction("bra", (Symbol(skip),), _inverse(instruction.guard), instruction.line)
        names = dict(
            zip([p.name for p in (*callee.results, *callee.parameters)], (*results, *arguments), strict=False)
        )
        actual = {formal: body.renamed.get(name, name + body.suffix) for formal, name in names.items()}
        yield from self.expand(callee, actual, body.active | {callee.name})
        if instruction.guard is not None:
            yield Label(skip)

    def _of_the_driver(
        self, instruction: Instruction, target: str, lists: list[tuple[str, ...]], suffix: str
    ) -> Iterator[Statement]:
        """A failed assertion stops the kernel; `printf` does nothing and returns 0."""
        if target == "__assertfail":
            yield replace(instruction, opcode="trap", operands=())
            return
        for name in lists[0] if len(lists) > 1 else ():
            slot = self.slots.setdefault((name + suffix, 0), self.fresh("b32"))
            yield Instruction("mov.b32", (slot, Immediate(0, "int")), None, instruction.line)


_OF_THE_DRIVER = frozenset(("__assertfail", "vprintf"))


def _inverse(guard: Register | Negated) -> Register | Negated:
    return guard.register if isinstance(guard, Negated) else Negated(guard)


def _rename(instruction: Instruction, register: Callable[[Register], Register], suffix: str) -> Instruction:
    def operand(old: Operand | None) -> Operand | None:
        match old:
            case Register():
                return register(old)
            case Negated(inner):
                return Negated(register(inner))
            case Address(Register() as base, offset):
                return Address(register(base), offset)
            case Pair(first, second):
                return Pair(operand(first), operand(second))
            case Vector(elements):
                return Vector(tuple(operand(e) for e in elements))
            case _:
                return old

    operands = tuple(operand(o) for o in instruction.operands)
    if instruction.parts[0] in ("bra", "brx"):
        operands = tuple(Symbol(o.name + suffix) if isinstance(o, Symbol) else o for o in operands)
    guard = operand(instruction.guard)
    return replace(
        instruction, operands=operands, guard=guard if isinstance(guard, Register | Negated) else None
    )


def _blocks(statements: list[Statement]) -> list[Block]:
    groups: list[list[Instruction]] = [[]]
    start: dict[str, int] = {}
    tables: dict[str, tuple[str, ...]] = {}
    for statement in _lowered(statements):
        match statement:
            case Label(name):
                if groups[-1]:
                    groups.append([])
                start[name] = len(groups) - 1
            case BranchTargets(name, labels):
                tables[name] = labels
            case Instruction():
                base = statement.parts[0]
                ends = base in ENDS_BLOCK and not statement.opcode.startswith(("bar.warp", "barrier.warp"))
                if ends and statement.guard is not None and base in ("bar", "barrier", "trap", "brx"):
                    skip = f"skip@{len(groups)}@"
                    guard = _inverse(statement.guard)
                    groups[-1].append(Instruction("bra", (Symbol(skip),), guard, statement.line))
                    groups.extend([[replace(statement, guard=None)], []])
                    start[skip] = len(groups) - 1
                    continue
                groups[-1].append(statement)
                if ends:
                    groups.append([])
    leave = len(groups)
    blocks = [Block(n, body) for n, body in enumerate(groups)]
    for block in blocks:
        _finish(block, start, tables, leave)
    return [*blocks, Block(leave, [], "exit")]


def _lowered(statements: list[Statement]) -> Iterator[Statement]:
    """`bar.red` as a contribution, a plain barrier and the result, with opcodes of our own."""
    for statement in statements:
        if not isinstance(statement, Instruction) or not _BARRIER_REDUCTION.match(statement.opcode):
            yield statement
            continue
        target, *numbers, condition = statement.operands
        mode = next((p for p in statement.parts if p in ("popc", "and", "or")), None)
        if statement.guard is not None or mode is None or immediate(numbers[0]) is None:
            raise UnsupportedPtxError(statement.opcode, statement.line)
        yield Instruction("contribute", (numbers[0], condition), None, statement.line)
        yield Instruction("barrier.sync", tuple(numbers), None, statement.line)
        yield Instruction(f"contributed.{mode}", (target, numbers[0]), None, statement.line)


def _finish(block: Block, start: dict[str, int], tables: dict[str, tuple[str, ...]], leave: int) -> None:
    following = block.number + 1
    block.targets = (following,)
    if not block.instructions:
        return
    last = block.instructions[-1]
    base = last.parts[0]
    if base not in ENDS_BLOCK or last.opcode.startswith(("bar.warp", "barrier.warp")):
        return
    block.final = block.instructions.pop()
    if base in ("bar", "barrier", "trap"):
        block.end = "trap" if base == "trap" else "barrier"
        return
    if base == "brx":
        table = last.operands[1]
        selector = last.operands[0]
        if not isinstance(table, Symbol) or not isinstance(selector, Register):
            raise UnsupportedPtxError(last.opcode, last.line)
        block.end, block.condition = "switch", selector
        block.targets = tuple(start[label] for label in tables[table.name])
        return
    target = leave
    if base == "bra":
        symbol = last.operands[0]
        if not isinstance(symbol, Symbol) or symbol.name not in start:
            raise UnsupportedPtxError("branch to an unknown label", last.line)
        target = start[symbol.name]
    if last.guard is None:
        block.targets = (target,)
    else:
        block.end, block.condition, block.targets = "branch", last.guard, (target, following)


def all_of(block: Block) -> list[Instruction]:
    return [*block.instructions, block.final] if block.final is not None else block.instructions


def liveness(blocks: Sequence[Block]) -> None:
    """Find out which registers hold something that is still read, at the start and at the end of each block."""
    read: list[set[Register]] = []
    written: list[set[Register]] = []
    for block in blocks:
        block_read: set[Register] = set()
        block_written: set[Register] = set()
        for instruction in all_of(block):
            block_read.update(r for r in instruction.uses if r not in block_written)
            block_written.update(instruction.definitions)
        read.append(block_read)
        written.append(block_written)
    changed = True
    while changed:
        changed = False
        for block in reversed(blocks):
            out = frozenset().union(*(blocks[t].live_in for t in block.targets))
            live = frozenset(read[block.number] | (out - written[block.number]))
            if live != block.live_in or out != block.live_out:
                block.live_in, block.live_out, changed = live, out, True


def immediate(operand: Operand | None) -> int | None:
    """The value of an integer literal, None for anything else."""
    return operand.value if isinstance(operand, Immediate) and operand.form == "int" else None
