"""Run a kernel with every check on."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from mctskernel.profiling.emulator.checking import CheckedMemory
from mctskernel.profiling.emulator.codegen import Program
from mctskernel.profiling.emulator.findings import Finding, Findings
from mctskernel.profiling.emulator.lanes import Batch, Geometry
from mctskernel.profiling.emulator.launch import Argument, prepare, program_of
from mctskernel.profiling.emulator.machine import DEFAULT_LIMITS, LimitExceededError, Limits, Machine, batches
from mctskernel.profiling.emulator.memory import GlobalMemory
from mctskernel.profiling.emulator.ptx import Module, UnsupportedPtxError
from mctskernel.profiling.emulator.tallies import Tallies
from mctskernel.profiling.emulator.trail import Trail
from mctskernel.profiling.emulator.turns import Place, Turns


@dataclass(frozen=True)
class Execution:
    """What a run found. `lane_instructions` counts PTX instructions by thread; `seconds` includes code generation."""

    findings: tuple[Finding, ...]
    lane_instructions: int
    seconds: float
    completed: bool


def unsupported(module: Module, entry: str) -> str:
    """What the emulator doesn't know of an entry, and on which line; empty when it can run it."""
    try:
        program_of(module, entry, sliced=False)
    except UnsupportedPtxError as error:
        return str(error)
    return ""


def execute(
    module: Module,
    entry: str,
    geometry: Geometry,
    arguments: Sequence[Argument],
    memory: GlobalMemory,
    *,
    blocks: Sequence[int] | None = None,
    head_start: int = 0,
    limits: Limits = DEFAULT_LIMITS,
    tallies: Tallies | None = None,
    counters: Collection[Place] = (),
    trail: Trail | None = None,
) -> Execution:
    """Run every block of a launch, or those whose numbers are given, in their order, writing to `memory`.

    The first `head_start` of them run before the others begin, where the kernel has atomics by which it can notice.
    What they do is added to `tallies`.
    From `counters` a single block draws in its turn, as if all others of the grid did so too. What blocks change in
    global memory is added to a `trail`.

    Arguments are one a parameter: addresses, numbers, numpy scalars or bytes. What is wrong with the kernel comes
    back as findings, also what the emulator doesn't know; `ValueError` and `KeyError` are the caller's mistakes.
    """
    began = time.perf_counter()
    function = module.entries[entry]
    findings = Findings()
    try:
        program = program_of(module, entry, sliced=False)
        launch = prepare(module, function, geometry, arguments, memory)
    except UnsupportedPtxError as error:
        finding = Finding("unsupported", f"the emulator doesn't know {error}", error.line)
        return Execution((finding,), 0, time.perf_counter() - began, completed=False)
    machine = Machine(program, findings, limits)
    port = CheckedMemory(
        launch,
        memory,
        findings,
        _granule(program),
        geometry.blocks,
        fences=any(i.parts[0] in ("fence", "membar") for b in program.flow.blocks for i in b.instructions),
        swaps=any(".cas." in access.opcode for access in program.accesses),
        tallies=tallies,
        turns=Turns(geometry.blocks, counters) if counters else None,
        trail=trail,
    )
    completed = True
    stride = -(-launch.shared_bytes // 128) * 128
    # A result that depends on a clock is wrong sooner or later.
    started = secrets.randbits(60)
    with np.errstate(all="ignore"):
        for some in batches(range(geometry.blocks) if blocks is None else blocks, geometry.threads):
            batch = Batch(geometry, some, stride, lambda: started + machine.steps)
            port.start(batch)
            try:
                machine.run(batch, port, head_start)
            except LimitExceededError:
                completed = False
                break
            head_start = 0
    port.finish()
    return Execution(findings.all(), machine.lane_instructions, time.perf_counter() - began, completed)


def _granule(program: Program) -> int:
    """The finest unit in which the kernel touches shared or global memory, at most 4 bytes."""
    sizes = [int(a.element[1:]) for a in program.accesses if a.space != "local"]
    return min([4, *sizes])
