"""What machine code does, counted from the machine code itself on sampled blocks of a launch.

    code = interpretable(function, cubin)                 # once a build; an Uninterpreted says why not
    found = interpret(code, packed, memory, geometry, blocks=(0, 64), line_counts=counts)

Addresses, predicates and everything that they depend on are computed for all threads of a block; floating-point data
is not. Where a branch depends on such data it goes as often either way as the PTX emulator saw it go.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mctskernel.profiling.emulator.codegen import Program, compile_program
from mctskernel.profiling.emulator.control_flow import Block, ControlFlow, liveness
from mctskernel.profiling.emulator.counting import AccessCounts, CountingMemory, Counts, NeedsContentsError
from mctskernel.profiling.emulator.findings import Findings
from mctskernel.profiling.emulator.lanes import Batch, Geometry, Lanes
from mctskernel.profiling.emulator.launch import RUNTIME, Launch
from mctskernel.profiling.emulator.machine import LimitExceededError, Limits, Machine
from mctskernel.profiling.emulator.memory import GlobalMemory
from mctskernel.profiling.emulator.ptx import UnsupportedPtxError
from mctskernel.profiling.emulator.resolve import Range
from mctskernel.profiling.machine_code.cubin import sections
from mctskernel.profiling.machine_code.decisions import Odds, odds
from mctskernel.profiling.machine_code.float_rules import FLOAT_RULES
from mctskernel.profiling.machine_code.functions import Function
from mctskernel.profiling.machine_code.integer_rules import INTEGER_RULES
from mctskernel.profiling.machine_code.interpreted_opcodes import INTERPRETED
from mctskernel.profiling.machine_code.lowering import UnknownInstructionError
from mctskernel.profiling.machine_code.memory_rules import MEMORY_RULES
from mctskernel.profiling.machine_code.pieces import Piece, pieces_of
from mctskernel.profiling.machine_code.relevance import Decision, relevant
from mctskernel.profiling.machine_code.values import split_into_values

DEFAULT_LIMITS = Limits(lane_instructions=4_000_000_000, block_executions=2_000_000, seconds=5.0)
SHARED_BYTES = 256 << 10
PATH_BLOCKS = 200_000

_RULES = {**FLOAT_RULES, **INTEGER_RULES, **MEMORY_RULES}


@dataclass(frozen=True)
class Uninterpreted:
    """Why machine code can't be counted; the message is a sentence."""

    message: str


@dataclass(frozen=True)
class Interpretable:
    """A function that is ready to be interpreted, and what its constant banks hold."""

    function: Function
    pieces: tuple[Piece, ...]
    program: Program
    decisions: tuple[Decision, ...]
    parameter_base: int
    banks: Mapping[int, bytes]


@dataclass(frozen=True)
class Path:
    """The basic blocks that one warp went through, as indices of `Function.blocks`.

    `warps` is the number of warps of its block that it stands for; `truncated` when it went on.
    """

    block: int
    warp: int
    warps: int
    blocks: tuple[int, ...]
    truncated: bool


@dataclass(frozen=True)
class Interpretation:
    """What the sampled blocks did together.

    `counts.accesses[i]` is of the machine instruction `access_instructions[i]`; a copy to shared memory has two.
    `executions[i]` is how often warps issued instruction i, whether or not their predicates let them act.
    """

    counts: Counts
    access_instructions: tuple[int, ...]
    executions: np.ndarray
    paths: tuple[Path, ...]
    notes: tuple[str, ...]
    seconds: float


def interpretable(function: Function, cubin: bytes) -> Interpretable | Uninterpreted:
    """Prepare a function of a cubin: decode operands, find what addresses depend on, generate the code for it."""
    try:
        pieces, files = pieces_of(function, _RULES)
        values = split_into_values([piece.block for piece in pieces], files.named.values(), files.guards)
        kept = relevant(values)
        liveness(kept.blocks)
        flow = ControlFlow(kept.blocks, 0)
        program = compile_program(flow, INTERPRETED, RUNTIME, {}, [], (set(kept.needed), kept.through_shared))
    except UnknownInstructionError as error:
        return Uninterpreted(_sentence(str(error), function))
    except UnsupportedPtxError as error:
        where = f"#{error.line}" if error.line is not None else error.what
        return Uninterpreted(_sentence(where, function))
    base, banks = _constants(function.name, cubin)
    program = replace(program, lengths=[p.last - p.first + 1 for p in pieces])
    return Interpretable(function, tuple(pieces), program, kept.decisions, base, banks)


def _sentence(what: str, function: Function) -> str:
    if what.startswith("#"):
        instruction = function.instructions[int(what[1:])]
        return f"An address or a predicate depends on what '{instruction.opcode} {instruction.operands}' computes."
    return f"The interpreter doesn't know the instruction '{what}'."


def interpret(
    code: Interpretable,
    parameters: bytes,
    memory: GlobalMemory,
    geometry: Geometry,
    *,
    blocks: Sequence[int] = (0,),
    line_counts: Mapping[int, float] | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Interpretation | Uninterpreted:
    """Count sampled blocks (linear block numbers) of a launch; buffers may be virtual.

    `parameters` are the packed arguments. `line_counts` are the executions per warp of each PTX line.
    `counts.needs` names buffers whose contents decide addresses or branches: back them and interpret again.
    """
    began = time.perf_counter()
    findings = Findings()
    machine = Machine(code.program, findings, limits)
    launch = Launch(parameters, [], [Range("shared memory", 0, SHARED_BYTES)], [], SHARED_BYTES)
    odds_of = odds(code.function, code.pieces, code.decisions, line_counts or {})
    port = InterpretedMemory(code.program, launch, memory, code=code, geometry=geometry, odds=odds_of)
    done: list[int] = []
    needs: tuple[str, ...] = ()
    with np.errstate(all="ignore"):
        for block in blocks:
            port.start(Batch(geometry, np.array([block]), SHARED_BYTES, lambda: machine.steps))
            try:
                machine.run(port.batch, port)
            except LimitExceededError:
                return Uninterpreted(f"The interpreter stopped: {findings.all()[0].message}.")
            except UnresolvedCallError as error:
                return Uninterpreted(str(error))
            except NeedsContentsError as error:
                needs = (str(error),)
                break
            done.append(block)
    if findings.all():
        return Uninterpreted(f"The interpreter stopped: {findings.all()[0].message}.")
    seconds = time.perf_counter() - began
    counts = port.counts(tuple(done), needs, findings.all(), seconds)
    instructions = code.function.instructions
    lines = [a.line or 0 for a in code.program.accesses]
    accesses = tuple(
        replace(
            a,
            opcode=instructions[at].opcode,
            line=instructions[at].line,
            kind=_kind(a, instructions[at].mnemonic),
        )
        for a, at in zip(counts.accesses, lines, strict=True)
    )
    executions = np.zeros(len(instructions), np.int64)
    for piece, warps in zip(code.pieces, port.warp_executions, strict=True):
        executions[piece.first : piece.last] += warps
    return Interpretation(
        replace(counts, accesses=accesses),
        tuple(lines),
        executions,
        tuple(port.paths()),
        tuple(dict.fromkeys(each.note for each in odds_of if each.note)),
        seconds,
    )


def _kind(access: AccessCounts, mnemonic: str) -> str:
    return "atomic" if access.kind == "reduction" and mnemonic.startswith("ATOM") else access.kind


class UnresolvedCallError(Exception):
    """The interpreter came to a call that it can't follow."""


@dataclass
class InterpretedMemory(CountingMemory):
    """The memory port of the interpreter: constants, undecided branches and paths besides what the emulator counts."""

    code: Interpretable = field(kw_only=True)
    geometry: Geometry = field(kw_only=True)
    odds: Sequence[Odds] = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        block, grid = self.geometry.block, self.geometry.grid
        base = self.code.parameter_base
        first = bytearray(struct.pack("<6I", *block, *grid).ljust(base, b"\0"))
        # From Blackwell on the extents stand right before the parameters.
        struct.pack_into("<3I", first, base - 0x20, *block)
        struct.pack_into("<3I", first, base - 0x10, *grid)
        self.banks = {**self.code.banks, 0: bytes(first) + self.launch.packed}
        self._constants: dict[tuple[int, int, str], np.generic] = {}
        self._asked = [np.zeros(0)] * len(self.odds)
        self._starts = [piece.starts for piece in self.code.pieces]
        self._followed: list[tuple[int, int, int, list[int]]] = []

    def start(self, batch: Batch) -> None:
        super().start(batch)
        warps = batch.warps_per_block
        chosen = sorted({0, warps // 2, warps - 1})
        shares = [1] * len(chosen)
        shares[len(chosen) // 2] += warps - len(chosen)
        self._current: list[list[int]] = [[] for _ in chosen]
        self._chosen = np.array(chosen)
        for warp, share, blocks in zip(chosen, shares, self._current, strict=True):
            self._followed.append((int(batch.blocks[0]), warp, share, blocks))

    def executed(self, block: Block, lanes: Lanes) -> None:
        super().executed(block, lanes)
        starts = self._starts[block.number]
        if starts is not None:
            for which in lanes.cached("followed", lambda: np.flatnonzero(np.isin(self._chosen, lanes.warps))):
                followed = self._current[which]
                if len(followed) <= PATH_BLOCKS:
                    followed.append(starts)

    def paths(self) -> list[Path]:
        """The paths of the followed warps."""
        return [
            Path(block, warp, share, tuple(blocks[:PATH_BLOCKS]), len(blocks) > PATH_BLOCKS)
            for block, warp, share, blocks in self._followed
        ]

    def constant(self, bank: int, offset: int, dtype: str) -> np.generic:
        """A constant at a fixed place; zero beyond the bank's end."""
        key = (bank, offset, dtype)
        found = self._constants.get(key)
        if found is None:
            data = self.banks.get(bank, b"")[offset : offset + int(dtype[1])].ljust(int(dtype[1]), b"\0")
            found = self._constants[key] = np.frombuffer(data, dtype)[0]
        return found

    def constants(self, bank: int, offsets: Any, dtype: str) -> Any:
        """Constants at computed places."""
        data = self.banks.get(bank, b"")
        size = int(dtype[1])
        table = np.frombuffer(data[: len(data) // size * size].ljust(size, b"\0"), dtype)
        return table[np.minimum(offsets // size, len(table) - 1)]

    def unresolved(self, index: int) -> np.bool_:
        """A call whose target isn't known was reached."""
        instruction = self.code.function.instructions[index]
        raise UnresolvedCallError(
            f"The code that '{instruction.opcode} {instruction.operands}' calls isn't known."
        )

    def decide(self, lanes: Lanes, number: int) -> Any:
        """Which lanes take an undecided branch: whole warps in turn, so that the shares come out right."""
        odds = self.odds[number]
        taken, other = odds.taken, odds.other
        if taken >= 1.0 and other <= 0.0:
            return np.True_
        if taken <= 0.0:
            return np.False_
        asked = self._asked[number]
        if len(asked) != self.batch.warps_per_block:
            asked = self._asked[number] = np.zeros(self.batch.warps_per_block)
        warps = lanes.warps[lanes.warp_starts]
        before = asked[warps] + warps * _GOLDEN
        asked[warps] += 1.0
        phase = before % 1.0 if False else before
        steps = np.floor((phase + 1.0) * taken) - np.floor(phase * taken) > 0
        both = max(0.0, taken + other - 1.0)
        counts = np.diff(np.r_[lanes.warp_starts, lanes.n])
        per_lane = np.repeat(steps, counts)
        if both > 0.0:
            split = np.floor((phase + 1.0) * other) - np.floor(phase * other) > 0
            per_lane &= ~(np.repeat(split & steps, counts) & (lanes.slots % 2 == 1))
        return per_lane


_GOLDEN = 0.6180339887498949


def _constants(name: str, cubin: bytes) -> tuple[int, dict[int, bytes]]:
    """Where parameters begin in bank 0, and what the other banks hold."""
    found = sections(cubin)
    banks = {
        bank: section.data
        for bank in range(1, 16)
        for key in (f".nv.constant{bank}.{name}", f".nv.constant{bank}")
        if (section := found.get(key)) is not None
    }
    return _parameter_base(found[f".nv.info.{name}"].data) if f".nv.info.{name}" in found else 0x210, banks


_PARAM_CBANK = 0x0A


def _parameter_base(data: bytes) -> int:
    """The offset of parameters in constant bank 0, from EIATTR_PARAM_CBANK."""
    at = 0
    while at + 4 <= len(data):
        layout, kind, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if layout != 4:
            continue
        if kind == _PARAM_CBANK and size >= 8:
            _, packed = struct.unpack_from("<II", data, at)
            return int(packed & 0xFFFF)
        at += size
    return 0x210
