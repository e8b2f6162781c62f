"""Disassembly of real machine code: what the compiler made of kernels whose shape is known."""

from functools import cache

import pytest

from mctskernel.core.kernel import Kernel
from mctskernel.profiling.build import Build, build
from mctskernel.profiling.machine_code.cubin import disassemble
from mctskernel.profiling.machine_code.functions import Function, Pipe

NESTED = """
extern "C" __global__ void k(const float* __restrict__ a, float* b, int n) {
    float sum = 0.0f;
    #pragma unroll 1
    for (int i = 0; i < n; i++) {
        #pragma unroll 1
        for (int j = 0; j < n; j++) {
            sum += a[i * n + j] * a[j];
        }
        b[i] = expf(sum);
    }
}
"""
STRAIGHT = """
extern "C" __global__ void k(const float* __restrict__ a, float* b) {
    __shared__ float s[256];
    s[threadIdx.x] = a[threadIdx.x];
    __syncthreads();
    b[threadIdx.x] = s[255 - threadIdx.x];
}
"""


@cache
def function(source: str, architecture: str = "sm_90") -> Function:
    result = build(Kernel(source), ("k",), architecture)
    assert isinstance(result, Build), result.message
    return disassemble(result.cubin)["k"]


def lines_of(found: Function, opcode: str) -> list[int | None]:
    return [i.line for i in found.instructions if i.opcode.startswith(opcode)]


def test_memory_instructions_carry_their_source_lines() -> None:
    found = function(STRAIGHT)
    assert lines_of(found, "LDG") == [4]
    assert lines_of(found, "BAR.SYNC") == [5]
    assert lines_of(found, "STG") == [6]


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_instructions_go_to_their_pipes(architecture: str) -> None:
    pipes = [each.pipe for each in function(NESTED, architecture).instructions]
    assert pipes.count(Pipe.SPECIAL) >= 1
    assert pipes.count(Pipe.LSU) >= 3
    assert pipes.count(Pipe.FMA) >= 2
    assert Pipe.TENSOR not in pipes


def test_loads_release_a_scoreboard_that_their_use_waits_for() -> None:
    found = function(STRAIGHT)
    load = next(i for i in found.instructions if i.mnemonic == "LDG")
    store = next(i for i in found.instructions if i.mnemonic == "STS")
    assert load.sets_on_write < 6
    assert load.sets_on_write in store.waits
    assert all(1 <= i.stall <= 15 for i in found.instructions if i.mnemonic in {"IMAD", "LEA", "MOV"})
