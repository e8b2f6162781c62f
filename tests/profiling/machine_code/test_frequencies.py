"""Execution counts of machine-code blocks, recovered from PTX counts."""

from functools import cache

import pytest

from mctskernel.core.kernel import Kernel
from mctskernel.profiling.build import Build, build
from mctskernel.profiling.machine_code.cubin import disassemble
from mctskernel.profiling.machine_code.frequencies import block_frequencies, instruction_lines
from mctskernel.profiling.machine_code.functions import Function

LOOP = """
extern "C" __global__ void k(const float* __restrict__ a, float* b, int n) {
    float sum = 0.0f;
    for (int i = 0; i < n; i++) {
        sum += a[i * 32 + threadIdx.x];
    }
    b[threadIdx.x] = sum;
}
"""


@cache
def built(source: str) -> tuple[Build, Function]:
    result = build(Kernel(source), ("k",))
    assert isinstance(result, Build), result.message
    return result, disassemble(result.cubin)["k"]


def counts_of(ptx: str, loads: float, rest: float) -> dict[int, float]:
    """Executions per PTX line of a kernel whose loads from global memory are all in its loop."""
    lines = ptx.split("\n")
    copies = sum("ld.global" in lines[number - 1] for number in instruction_lines(ptx, "k"))
    counts = {}
    for number in instruction_lines(ptx, "k"):
        text = lines[number - 1]
        if "ld.global" in text or "add.f32" in text:
            counts[number] = loads / copies
        elif "st.global" in text:
            counts[number] = rest
    return counts


@pytest.mark.parametrize("trips", [64, 1000])
def test_loads_run_as_often_as_the_ptx_said_whatever_the_compiler_unrolled(trips: int) -> None:
    result, function = built(LOOP)
    found = block_frequencies(function, counts_of(result.ptx, trips, 1.0))
    executed = {
        opcode: sum(
            found[block] * sum(i.mnemonic == opcode for i in function.code(block))
            for block in function.successors
        )
        for opcode in ("LDG", "FADD", "STG")
    }
    assert executed["LDG"] == pytest.approx(trips, rel=0.02)
    assert executed["FADD"] == pytest.approx(trips, rel=0.02)
    assert executed["STG"] == pytest.approx(1.0, rel=0.05)
