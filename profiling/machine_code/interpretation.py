"""What machine code does, counted from the machine code itself on sampled blocks of a launch.

    code = interpretable(function, cubin)                 # once a build; an Uninterpreted says why not
    found = interpret(code, packed, memory, geometry, blocks=(0, 64), line_counts=counts)

Addresses, predicates and everything that they depend on are computed for all threads of a block; floating-point data
is not. Where a branch depends on such data it goes as often either way as the PTX emulator saw it go.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mctskernel.profiling.emulator.codegen import Program, compile_program
from mctskernel.profiling.emulator.control_flow import ControlFlow, liveness
from mctskernel.profiling.emulator.counting import Counts, NeedsContentsError
from mctskernel.profiling.emulator.findings import Findings
from mctskernel.profiling.emulator.lanes import Batch, Geometry
from mctskernel.profiling.emulator.launch import RUNTIME, Launch
from mctskernel.profiling.emulator.machine import LimitExceededError, Limits, Machine
from mctskernel.profiling.emulator.memory import GlobalMemory
from mctskernel.profiling.emulator.ptx import UnsupportedPtxError
from mctskernel.profiling.emulator.resolve import Range
from mctskernel.profiling.emulator.turns import Place, Turns
from mctskernel.profiling.machine_code.arithmetic_rules import ARITHMETIC_RULES
from mctskernel.profiling.machine_code.constant_banks import ConstantBanks, constant_banks
from mctskernel.profiling.machine_code.decisions import odds
from mctskernel.profiling.machine_code.float_rules import FLOAT_RULES
from mctskernel.profiling.machine_code.functions import Function
from mctskernel.profiling.machine_code.interpreted_memory import InterpretedMemory, Path, UnresolvedCallError
from mctskernel.profiling.machine_code.interpreted_opcodes import INTERPRETED
from mctskernel.profiling.machine_code.logic_rules import LOGIC_RULES
from mctskernel.profiling.machine_code.lowering import UnknownInstructionError
from mctskernel.profiling.machine_code.memory_rules import MEMORY_RULES
from mctskernel.profiling.machine_code.pieces import Piece, pieces_of
from mctskernel.profiling.machine_code.relevance import Decision, UncomputableError, relevant
from mctskernel.profiling.machine_code.values import split_into_values
from mctskernel.profiling.machine_code.warp_rules import WARP_RULES

DEFAULT_LIMITS = Limits(lane_instructions=4_000_000_000, block_executions=400_000, seconds=20.0)
"""A few seconds of an idle core, the same on every machine; the seconds are for one that is busy."""

_RULES = {**ARITHMETIC_RULES, **LOGIC_RULES, **WARP_RULES, **FLOAT_RULES, **MEMORY_RULES}
_SHARED_BYTES = 256 << 10


@dataclass(frozen=True)
class Uninterpreted:
    """Why machine code can't be counted; the message is a sentence. `endless` if it ran up to the limits."""

    message: str
    endless: bool = False


@dataclass(frozen=True)
class Interpretable:
    """A function that is ready to be interpreted."""

    function: Function
    pieces: tuple[Piece, ...]
    program: Program
    decisions: tuple[Decision, ...]
    banks: ConstantBanks


@dataclass(frozen=True)
class Interpretation:
    """What the sampled blocks did together.

    `counts.accesses[i]` is of the machine instruction `access_instructions[i]`, its line the kernel's source line; a
    copy to shared memory has two of them. `executions` has for each machine instruction how often warps issued it,
    whether or not its predicate let any lane act: its sum is what smsp__inst_executed counts. `notes` are sentences.
    """

    function: Function
    counts: Counts
    access_instructions: tuple[int, ...]
    executions: np.ndarray
    paths: tuple[Path, ...]
    warps: int
    notes: tuple[str, ...]
    seconds: float

    @property
    def shared_wavefronts(self) -> int:
        """Shared-memory wavefronts as Nsight Compute counts them (l1tex__data_pipe_lsu_wavefronts_mem_shared).

        Besides the conflicts of the lanes that act: one for an access that no lane makes, one for a shuffle, and
        one for each warp. Of 110 kernels timed on an H100 half are within 5 % of what was counted; those that hardly
        use shared memory are furthest below it (`experiments.model_benchmark`).
        """
        total = self.warps
        for access, index in zip(self.counts.accesses, self.access_instructions, strict=True):
            if access.space == "shared":
                total += access.wavefronts + max(0, int(self.executions[index]) - access.requests)
        for instruction, executed in zip(self.function.instructions, self.executions, strict=True):
            if instruction.mnemonic == "SHFL":
                total += int(executed)
        return total


def interpretable(function: Function, cubin: bytes = b"") -> Interpretable | Uninterpreted:
    """Prepare a function of a cubin: decode operands, find what addresses depend on, generate the code for it."""
    try:
        pieces, files = pieces_of(function, _RULES)
        values = split_into_values([piece.block for piece in pieces], files.named.values(), files.guards)
        kept = relevant(values)
        liveness(kept.blocks)
        needed = (set(kept.needed), kept.through_shared)
        program = compile_program(ControlFlow(kept.blocks, 0), INTERPRETED, RUNTIME, {}, [], needed)
    except UnknownInstructionError as error:
        return Uninterpreted(f"The interpreter doesn't know the instruction '{error}'.")
    except UncomputableError as error:
        return Uninterpreted(f"An address depends on what '{_text(function, error.index)}' computes.")
    except UnsupportedPtxError as error:
        what = error.what if error.line is None else _text(function, error.line)
        return Uninterpreted(f"The interpreter can't compute '{what}'.")
    program = replace(program, lengths=[piece.last - piece.first + 1 for piece in pieces])
    return Interpretable(
        function, tuple(pieces), program, kept.decisions, constant_banks(cubin, function.name)
    )


def _text(function: Function, index: int) -> str:
    instruction = function.instructions[index]
    return f"{instruction.opcode} {instruction.operands}".strip()


def interpret(
    code: Interpretable,
    parameters: bytes,
    memory: GlobalMemory,
    geometry: Geometry,
    *,
    blocks: Sequence[int] = (0,),
    line_counts: Mapping[int, float] | None = None,
    limits: Limits = DEFAULT_LIMITS,
    counters: Collection[Place] | None = None,
) -> Interpretation | Uninterpreted:
    """Count sampled blocks (linear block numbers) of a launch; buffers may be virtual.

    Each block draws from integer counters as if all others of the grid did so too, and from `counters` in its turn.
    `parameters` are the packed arguments, `line_counts` the executions per warp of each PTX line. `counts.needs`
    names buffers whose contents decide addresses or branches: back them and interpret again.
    """
    began = time.perf_counter()
    findings = Findings()
    machine = Machine(code.program, findings, limits)
    answers = odds(code.function, code.pieces, code.decisions, line_counts or {})
    port = InterpretedMemory(
        code.program,
        Launch(parameters, [], [Range("shared memory", 0, _SHARED_BYTES)], [], _SHARED_BYTES),
        memory,
        Turns(geometry.blocks, counters),
        banks=code.banks.of_launch(geometry, parameters),
        starts=[piece.starts for piece in code.pieces],
        odds=answers,
    )
    done: list[int] = []
    needs: tuple[str, ...] = ()
    with np.errstate(all="ignore"):
        for block in blocks:
            port.start(Batch(geometry, np.array([block]), _SHARED_BYTES, lambda: machine.steps))
            try:
                machine.run(port.batch, port)
            except LimitExceededError:
                break
            except UnresolvedCallError as error:
                return Uninterpreted(f"What '{_text(code.function, int(str(error)))}' calls isn't known.")
            except NeedsContentsError as error:
                needs = (str(error),)
                break
            done.append(block)
    if stopped := findings.all():
        return Uninterpreted(f"The interpreter stopped: {stopped[0].message}.")
    seconds = time.perf_counter() - began
    return _found(code, port, port.counts(tuple(done), needs, (), seconds), [a.note for a in answers])


def _found(
    code: Interpretable, port: InterpretedMemory, counts: Counts, notes: Sequence[str]
) -> Interpretation:
    instructions = code.function.instructions
    indices = tuple(access.line or 0 for access in code.program.accesses)
    accesses = tuple(
        replace(
            access,
            opcode=instructions[index].opcode,
            line=instructions[index].line,
            kind="atomic" if instructions[index].mnemonic.startswith("ATOM") else access.kind,
        )
        for access, index in zip(counts.accesses, indices, strict=True)
    )
    executions = np.zeros(len(instructions), np.int64)
    for piece, warps in zip(code.pieces, port.warp_executions, strict=True):
        executions[piece.first : piece.last] += warps
    return Interpretation(
        code.function,
        replace(counts, accesses=accesses),
        indices,
        executions,
        tuple(port.paths()),
        port.batch.warps_per_block * len(counts.blocks),
        tuple(dict.fromkeys(filter(None, notes))),
        counts.seconds,
    )
