"""Machine code for tests: written by hand as text, or compiled; and what the PTX emulator makes of the same kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from mctskernel.core.kernel import Kernel
from mctskernel.profiling.build import Build, build
from mctskernel.profiling.emulator import Counts, Geometry, GlobalMemory, count, parse_ptx
from mctskernel.profiling.emulator.launch import Argument, pack
from mctskernel.profiling.machine_code.disassembly import disassemble
from mctskernel.profiling.machine_code.frequencies import instruction_lines
from mctskernel.profiling.machine_code.functions import Function
from mctskernel.profiling.machine_code.instructions import NO_BARRIER, Instruction
from mctskernel.profiling.machine_code.interpretation import (
    Interpretation,
    Uninterpreted,
    interpret,
    interpretable,
)


def assembled(text: str) -> Function:
    """A function from lines such as `@!P0 IADD3 R2, R2, R3, RZ`; `name:` labels, and `BRA name` goes there."""
    labels: dict[str, int] = {}
    lines: list[str] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.endswith(":"):
            labels[line[:-1]] = 16 * len(lines)
        else:
            lines.append(line)
    code = []
    for index, line in enumerate(lines):
        predicate, _, rest = line.partition(" ") if line.startswith("@") else ("", "", line)
        opcode, _, operands = rest.partition(" ")
        target = labels.get(operands.rpartition(" ")[2])
        code.append(
            Instruction(
                16 * index,
                predicate[1:],
                opcode,
                operands,
                index,
                index,
                target,
                1,
                NO_BARRIER,
                NO_BARRIER,
                (),
            )
        )
    return Function("k", tuple(code))


def interpreted(
    text: str, parameters: bytes = b"", *, block: int = 32, line_counts: Mapping[int, float] | None = None
) -> Interpretation | Uninterpreted:
    """What one block of hand-written code does; PTX lines are the numbers of its instructions."""
    code = interpretable(assembled(text))
    if isinstance(code, Uninterpreted):
        return code
    geometry = Geometry((1, 1, 1), (block, 1, 1))
    return interpret(code, parameters, GlobalMemory(), geometry, line_counts=line_counts)


def result_of(text: str, *parameters: int) -> int:
    """What hand-written code leaves in R4, from 32-bit parameters in R16, R17 and so on.

    It is read off the sector that a load touches which is 32 times R4 away from address 0.
    """
    loads = [f"LDC R{16 + i}, c[0x0][{0x210 + 4 * i:#x}]" for i in range(len(parameters))]
    tail = ["IMAD.WIDE.U32 R250, R4, 0x20, RZ", "LDG.E.U8 R250, desc[UR4][R250.64]", "EXIT"]
    packed = np.array(parameters, np.uint32).tobytes()
    found = interpreted("\n".join([*loads, text, *tail]), packed)
    assert isinstance(found, Interpretation), found.message
    return int(found.counts.traces[0].sectors[-1])


@dataclass(frozen=True)
class Both:
    """One launch as the PTX emulator and as the interpreter of machine code count it."""

    emulated: Counts
    interpreted: Interpretation
    function: Function


@cache
def compiled(source: str, architecture: str = "sm_90") -> tuple[Build, Function]:
    """A kernel called k."""
    made = build(Kernel(source), ("k",), architecture)
    assert isinstance(made, Build), made.message
    return made, disassemble(made.cubin).functions["k"]


def both(
    source: str,
    geometry: Geometry,
    arguments: Sequence[np.ndarray | int | Argument],
    *,
    blocks: Sequence[int] = (0,),
    architecture: str = "sm_90",
) -> Both:
    """Count the same blocks twice; arrays become buffers."""
    made, function = compiled(source, architecture)
    module = parse_ptx(made.ptx)
    memory = GlobalMemory()
    values = [
        memory.add(f"a{i}", each) if isinstance(each, np.ndarray) else each
        for i, each in enumerate(arguments)
    ]
    emulated = count(module, "k", geometry, values, memory, blocks=blocks)
    assert not emulated.findings, emulated.findings
    code = interpretable(function, made.cubin)
    assert not isinstance(code, Uninterpreted), code.message
    lines = line_counts(made.ptx, emulated, -(-geometry.threads // 32) * len(blocks))
    packed = pack(module.entries["k"].parameters, values)
    found = interpret(code, packed, memory, geometry, blocks=blocks, line_counts=lines)
    assert isinstance(found, Interpretation), found.message
    assert not found.counts.needs
    return Both(emulated, found, function)


def line_counts(ptx: str, counts: Counts, warps: int) -> dict[int, float]:
    """Executions per warp of each PTX line."""
    lines = iter(instruction_lines(ptx, "k"))
    found: Counter[int] = Counter()
    for block in counts.basic_blocks:
        for _ in range(sum(block.instructions.values())):
            found[next(lines)] += block.warp_executions
    return {line: executions / warps for line, executions in found.items()}


def sectors(counts: Counts, kinds: Sequence[str]) -> Counter[int]:
    """How often each global sector is touched by accesses of some kinds."""
    found: Counter[int] = Counter()
    for trace in counts.traces:
        chosen = np.isin(trace.accesses, [i for i, a in enumerate(counts.accesses) if a.kind in kinds])
        found.update(trace.sectors[chosen].tolist())
    return found
