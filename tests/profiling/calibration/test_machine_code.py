"""The loops of the microbenchmarks hold what their constants rely on: nothing saved, nothing added, nothing spilled."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from mctskernel.core.kernel import Kernel
from mctskernel.profiling.build import Build, build
from mctskernel.profiling.calibration.catalogue import clock, microbenchmarks
from mctskernel.profiling.calibration.machine import DELAY_SOURCE
from mctskernel.profiling.calibration.microbenchmark import KERNEL, Board, Microbenchmark
from mctskernel.profiling.machine_code.disassembly import disassemble
from mctskernel.profiling.machine_code.functions import Function
from mctskernel.profiling.machine_code.instructions import Instruction

CODES = ("sm_80", "sm_89", "sm_90", "sm_100")

ALIASES = {"REDG": "RED"}
"""Since Hopper a reduction in global memory is called so."""

LOOP_CONTROL = frozenset(
    {"BRA", "CALL", "IADD3", "UIADD3", "VIADD", "ISETP", "UISETP", "MOV", "IMAD", "CS2R"}
)
"""What counts rounds and jumps back; CS2R and moves make the zeros that tensor instructions read."""

UNROLLED = {
    "throughput.fma",
    "throughput.alu",
    "throughput.special",
    "throughput.fp64",
    "throughput.shuffle",
    "integer multiply-adds",
    "issue",
    "latency.fixed_alu",
    "latency.special",
    "latency.shared",
    "latency.l1",
    "latency.l2",
    "latency.barrier",
}
"""Loops that issue nothing besides but their own control."""

WIDTHS = {
    "throughput.lsu_instructions": "LDS",
    "throughput.wavefronts": "LDS",
    "shared wavefronts, 8 bytes": "LDS.64",
    "shared wavefronts, 16 bytes": "LDS.128",
    "global wavefronts, 4 bytes": "LDG.E",
    "global wavefronts, 8 bytes": "LDG.E.64",
    "global wavefronts, 16 bytes": "LDG.E.128",
    "latency.l1": "LDG.E.64",
    # Past L1.
    "latency.l2": "LDG.E.64.STRONG.GPU",
    "latency.dram": "LDG.E.STRONG.GPU",
    "memory.l2_bytes_per_second": "LDG.E.128.STRONG.GPU",
}

BUSY = {"LDG", "LDS", "STG", "RED", "SHFL", "MUFU", "DFMA", "HMMA", "HGMMA", "FFMA", "BAR", "LDL", "STL"}
"""Instructions whose number decides about a rate: none may be there besides those that are expected."""


def board(code: str) -> Board:
    return Board("a GPU", code, sms=132, l2_bytes=50 << 20, max_shared_bytes=101376)


def all_of(code: str) -> tuple[Microbenchmark, ...]:
    return clock(board(code)), *microbenchmarks(board(code))


@cache
def machine_code(code: str) -> dict[str, tuple[Microbenchmark, Function]]:
    """Every microbenchmark's kernel, compiled in one piece for each code: disassembling them one by one takes long."""
    found = {}
    for target in {each.code or code for each in all_of(code)}:
        mine = [each for each in all_of(code) if (each.code or code) == target]
        names = [f"{KERNEL}_{index}" for index in range(len(mine))]
        text = "\n".join(
            each.source.replace(f" {KERNEL}(", f" {name}(") for each, name in zip(mine, names, strict=True)
        )
        made = build(Kernel(text), names, target)
        assert isinstance(made, Build), made
        functions = disassemble(made.cubin).functions
        for each, name in zip(mine, names, strict=True):
            assert not made.resources_of(name).spill_load_bytes
            found[each.constant] = (each, functions[made.entries[name]])
    return found


def loop_code(function: Function) -> list[Instruction]:
    """The instructions of the last loop, or all that can be reached where there is none."""
    blocks = function.loops[-1].blocks if function.loops else function.successors
    return [i for block in blocks for i in function.code(block)]


def loop_of(function: Function) -> Counter[str]:
    """How often each instruction stands there."""
    return Counter(ALIASES.get(i.mnemonic, i.mnemonic) for i in loop_code(function) if i.mnemonic != "NOP")


@pytest.mark.parametrize("code", CODES)
def test_each_loop_holds_what_the_fit_counts_and_next_to_nothing_else(code: str) -> None:
    wrong = {}
    for constant, (benchmark, function) in machine_code(code).items():
        loop = loop_of(function)
        expected = {opcode: loop[opcode] for opcode in benchmark.loop}
        rest = {opcode: count for opcode, count in loop.items() if opcode not in benchmark.loop}
        if constant == "DRAM reads":
            # The store that is never reached.
            rest.pop("STG")
        busy = {opcode: count for opcode, count in rest.items() if opcode in BUSY}
        if expected != dict(benchmark.loop) or busy:
            wrong[constant] = (expected, busy)
        if constant in UNROLLED and (not set(rest) <= LOOP_CONTROL or sum(rest.values()) > 5):
            wrong[constant] = (expected, rest)
        if constant in WIDTHS:
            opcodes = {i.opcode for i in loop_code(function) if i.mnemonic in benchmark.loop}
            if opcodes != {WIDTHS[constant]}:
                wrong[constant] = (expected, dict.fromkeys(opcodes, 0))
    assert not wrong, wrong


@pytest.mark.parametrize("code", CODES)
def test_only_hopper_is_asked_for_wgmma_and_constants_are_measured_once(code: str) -> None:
    benchmarks = all_of(code)
    wide = {each.constant for each in benchmarks if "HGMMA" in each.loop}
    names = [each.constant for each in benchmarks]
    assert wide == ({"throughput.tensor_fma"} if code == "sm_90" else set())
    assert len(names) == len(set(names))


def test_the_delay_only_waits() -> None:
    made = build(Kernel(DELAY_SOURCE), (KERNEL,), "sm_90")
    assert isinstance(made, Build)
    (function,) = disassemble(made.cubin).functions.values()
    assert len(function.loops) == 1
    assert loop_of(function)["CS2R"] == 1
