"""Machine code cut into pieces that run from top to bottom, calls inlined, in the emulator's control flow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mctskernel.profiling.emulator.control_flow import Block
from mctskernel.profiling.emulator.ptx import Immediate, Negated, Register
from mctskernel.profiling.emulator.ptx import Instruction as Lowered
from mctskernel.profiling.machine_code.cubin import INSTRUCTION_BYTES
from mctskernel.profiling.machine_code.functions import Function
from mctskernel.profiling.machine_code.instructions import Instruction
from mctskernel.profiling.machine_code.lowering import (
    TRUE,
    Lowering,
    Predicate,
    RegisterFiles,
    Rule,
    UnknownInstructionError,
)
from mctskernel.profiling.machine_code.operands import (
    ImmediateOperand,
    RegisterOperand,
    parse_operand,
    split,
)

MAX_PIECES = 20_000

Key = tuple[int, tuple[int, ...], bool]
_LEAVE: Key = (-1, (), False)


@dataclass(frozen=True)
class Piece:
    """Machine instructions `first` to `last - 1` as one block of the emulator.

    `starts` is the basic block that begins with it, None where it goes on with one.
    """

    first: int
    last: int
    starts: int | None
    block: Block


@dataclass
class _Draft:
    first: int
    last: int
    instructions: list[Lowered] = field(default_factory=list)
    end: str = "jump"
    condition: Register | Negated | None = None
    targets: tuple[Key, ...] = ()
    final: Lowered | None = None


def pieces_of(function: Function, rules: Mapping[str, Rule]) -> tuple[list[Piece], RegisterFiles]:
    """The pieces that can be reached from the entry, the empty exit last; numbers rise with the flow of control.

    Raises UnknownInstructionError.
    """
    cutter = _Cutter(function, rules)
    drafts = cutter.cut()
    order = _order(drafts)
    number = {key: position for position, key in enumerate(order)}
    number[_LEAVE] = len(order)
    first_of = {block.first: index for index, block in enumerate(function.blocks)}
    pieces = []
    for key in order:
        draft = drafts[key]
        block = Block(
            number[key],
            draft.instructions,
            draft.end,
            draft.condition,
            tuple(number[target] for target in draft.targets),
            draft.final,
        )
        starts = first_of.get(draft.first) if draft.last > draft.first else None
        pieces.append(Piece(draft.first, draft.last, starts, block))
    pieces.append(Piece(0, 0, None, Block(len(order), [], "exit")))
    return pieces, cutter.files


class _Cutter:
    def __init__(self, function: Function, rules: Mapping[str, Rule]) -> None:
        self.code = function.instructions
        self.rules = rules
        self.files = RegisterFiles()
        starts = {block.first for block in function.blocks}
        for index, instruction in enumerate(self.code):
            if instruction.mnemonic in {"BAR", "CALL", "RET"}:
                starts.update((index, index + 1))
            if instruction.mnemonic in {"BRA", "JMP", "CALL"} and instruction.target is not None:
                starts.add(instruction.target // INSTRUCTION_BYTES)
        self.starts = sorted(starts)
        self.following = dict(zip(self.starts, [*self.starts[1:], len(self.code)], strict=True))

    def cut(self) -> dict[Key, _Draft]:
        drafts: dict[Key, _Draft] = {}
        waiting: list[Key] = [(0, (), False)]
        while waiting:
            key = waiting.pop()
            if key in drafts or key == _LEAVE:
                continue
            if len(drafts) >= MAX_PIECES:
                raise UnknownInstructionError(f"more than {MAX_PIECES} pieces of inlined code")
            drafts[key] = self._draft(key)
            waiting.extend(drafts[key].targets)
        return drafts

    def _draft(self, key: Key) -> _Draft:
        first, context, barrier = key
        if first >= len(self.code):
            return _Draft(first, first, targets=(_LEAVE,))
        last = self.following[first]
        if barrier:
            return self._barrier(_Draft(last, last), self.code[first], (last, context, False), first)
        draft = _Draft(first, last)
        lowering = Lowering(self.files)
        *body, final = range(first, last)
        for index in body:
            if self.code[index].mnemonic not in _CONTROL:
                lowering.lower(index, self.code[index], self.rules)
        draft.instructions = lowering.instructions
        instruction = self.code[final]
        if instruction.mnemonic in _CONTROL:
            lowering.index, lowering.machine = final, instruction
            self._end(draft, lowering, instruction, final, (last, context, False))
        else:
            lowering.lower(final, instruction, self.rules)
            draft.targets = ((last, context, False),)
        return draft

    def _end(
        self, draft: _Draft, lowering: Lowering, instruction: Instruction, index: int, following: Key
    ) -> None:
        context = following[1]
        match instruction.mnemonic:
            case "BAR":
                self._at_barrier(draft, lowering, instruction, index, following)
                return
            case "EXIT" | "KILL" | "BPT":
                target = _LEAVE
            case "RET":
                target = (context[-1], context[:-1], False) if context else _LEAVE
            case "CALL":
                target = self._callee(instruction, index, context)
                if target == _LEAVE:
                    draft.instructions.append(
                        Lowered("unresolved", (self.files.temporary("pred"),), None, index)
                    )
            case "BRA" | "JMP" if instruction.target is not None:
                target = (instruction.target // INSTRUCTION_BYTES, context, False)
            case _:
                raise lowering.unknown()
        condition = self._condition(lowering, instruction)
        if isinstance(condition, Immediate):
            draft.targets = (target if condition.value else following,)
        elif target == following:
            draft.targets = (following,)
        else:
            draft.end, draft.condition, draft.targets = "branch", condition, (target, following)
            draft.final = Lowered("bra", (), condition, index)

    def _callee(self, instruction: Instruction, index: int, context: tuple[int, ...]) -> Key:
        """Where a call goes. One whose target isn't known ends the interpretation, should it be reached."""
        if instruction.target is None:
            return _LEAVE
        target = instruction.target // INSTRUCTION_BYTES
        if index + 1 in context or target not in self.following:
            raise UnknownInstructionError(f"recursion through {instruction.opcode} {instruction.operands}")
        return (target, (*context, index + 1), False)

    @staticmethod
    def _condition(lowering: Lowering, instruction: Instruction) -> Predicate:
        """When a branch is taken: under its guard, and by the predicates among its operands."""
        parts = instruction.opcode.split(".")
        if "DIV" in parts or "CONV" in parts:
            return Immediate(0, "int")
        truths: list[Predicate] = []
        if instruction.predicate:
            truths.append(lowering.predicate(parse_operand(instruction.predicate)))
        for text in split(instruction.operands):
            operand = parse_operand(text)
            if isinstance(operand, RegisterOperand) and operand.is_predicate:
                truths.append(lowering.predicate(operand))
        truths = [truth for truth in truths if truth != TRUE]
        if not truths:
            return TRUE
        if any(isinstance(truth, Immediate) for truth in truths):
            return Immediate(0, "int")
        if len(truths) == 1:
            return truths[0]
        return lowering.temporary("pred", "and.pred", *truths)

    def _at_barrier(
        self, draft: _Draft, lowering: Lowering, instruction: Instruction, index: int, following: Key
    ) -> None:
        if "ARV" in instruction.opcode.split("."):
            draft.targets = (following,)
            return
        condition = lowering.guard_of(instruction)
        if condition is None:
            self._barrier(draft, instruction, following, index)
        elif condition.__class__ is Register and condition.ordinal < 0:
            draft.targets = (following,)
        else:
            draft.end, draft.condition = "branch", condition
            draft.targets = ((index, following[1], True), following)
            draft.final = Lowered("bra", (), condition, index)

    def _barrier(self, draft: _Draft, instruction: Instruction, following: Key, index: int) -> _Draft:
        lowering = Lowering(self.files, machine=instruction, index=index)
        numbers = []
        for text in split(instruction.operands):
            operand = parse_operand(text)
            if isinstance(operand, ImmediateOperand) or (
                isinstance(operand, RegisterOperand) and not operand.is_predicate
            ):
                numbers.append(lowering.source(operand))
        draft.instructions = [*draft.instructions, *lowering.instructions]
        draft.end, draft.targets = "barrier", (following,)
        draft.final = Lowered("bar.sync", tuple(numbers) or (Immediate(0, "int"),), None, index)
        return draft


_CONTROL = frozenset(["BRA", "JMP", "BRX", "JMX", "BRXU", "EXIT", "RET", "CALL", "KILL", "BAR"])


def _order(drafts: Mapping[Key, _Draft]) -> list[Key]:
    """Reverse postorder, loops before what comes after them, so that whoever is behind runs first."""
    successors = {key: [t for t in draft.targets if t != _LEAVE] for key, draft in drafts.items()}
    entry = next(iter(drafts))
    loops = _loops(successors, entry)
    seen, finished = {entry}, []
    stack = [(entry, _outward(entry, successors, loops))]
    while stack:
        key, remaining = stack[-1]
        for target in remaining:
            if target not in seen:
                seen.add(target)
                stack.append((target, _outward(target, successors, loops)))
                break
        else:
            finished.append(key)
            stack.pop()
    return finished[::-1]


def _outward(
    key: Key, successors: Mapping[Key, Sequence[Key]], loops: Mapping[Key, frozenset[int]]
) -> Iterator[Key]:
    """What follows a piece, the farthest out of its loops first."""
    own = loops.get(key, frozenset())
    ranked = sorted(successors[key], key=lambda target: len(own & loops.get(target, frozenset())))
    return iter(ranked)


def _loops(successors: Mapping[Key, Sequence[Key]], entry: Key) -> dict[Key, frozenset[int]]:
    """For each piece the loops that it is in, by number; a loop is what reaches back to a piece still being visited."""
    predecessors: dict[Key, list[Key]] = {key: [] for key in successors}
    for key, targets in successors.items():
        for target in targets:
            predecessors[target].append(key)
    inside: dict[Key, set[int]] = {key: set() for key in successors}
    for number, (tail, header) in enumerate(_back_edges(successors, entry)):
        body, waiting = {header}, [tail]
        while waiting:
            key = waiting.pop()
            if key not in body:
                body.add(key)
                waiting.extend(predecessors[key])
        for key in body:
            inside[key].add(number)
    return {key: frozenset(numbers) for key, numbers in inside.items()}


def _back_edges(successors: Mapping[Key, Sequence[Key]], entry: Key) -> list[tuple[Key, Key]]:
    found, active, seen = [], {entry}, {entry}
    stack = [(entry, iter(successors[entry]))]
    while stack:
        key, remaining = stack[-1]
        for target in remaining:
            if target in active:
                found.append((key, target))
            elif target not in seen:
                seen.add(target)
                active.add(target)
                stack.append((target, iter(successors[target])))
                break
        else:
            active.discard(key)
            stack.pop()
    return found
