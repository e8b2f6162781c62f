"""Execution counts of machine-code blocks, recovered from PTX counts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mctskernel.core.kernel import Kernel
from mctskernel.profiling.build import Build, build
from mctskernel.profiling.machine_code.disassembly import disassemble
from mctskernel.profiling.machine_code.frequencies import (
    block_frequencies,
    instruction_lines,
    nonnegative_least_squares,
)
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


def built(source: str) -> tuple[Build, Function]:
    result = build(Kernel(source), ("k",))
    assert isinstance(result, Build), result.message
    return result, disassemble(result.cubin).functions["k"]


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


def test_what_flows_into_a_block_flows_out_of_it() -> None:
    result, function = built(LOOP)
    found = block_frequencies(function, counts_of(result.ptx, 400.0, 1.0))
    for loop in function.loops:
        assert found[loop.header] >= 0
    exits = [b for b in function.successors if not function.successors[b]]
    assert sum(found[block] for block in exits) == pytest.approx(1.0, abs=0.1)


def test_without_evidence_every_block_runs_once() -> None:
    _, function = built(LOOP)
    assert set(block_frequencies(function, {}).values()) == {1.0}


def test_instruction_lines_point_at_instructions() -> None:
    result, _ = built(LOOP)
    lines = result.ptx.split("\n")
    texts = [lines[number - 1].split("//")[0].strip() for number in instruction_lines(result.ptx, "k")]
    assert texts[-1] == "ret;"
    assert all(text.endswith(";") and not text.startswith(".") for text in texts)
    assert instruction_lines(result.ptx, "nothing") == []


@given(
    st.integers(1, 6),
    st.integers(1, 8),
    st.integers(0, 1000),
)
def test_nonnegative_least_squares_satisfies_its_optimality_conditions(
    columns: int, rows: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    matrix, right = rng.normal(size=(rows, columns)), rng.normal(size=rows)
    x = nonnegative_least_squares(matrix, right)
    gradient = matrix.T @ (right - matrix @ x)
    assert (x >= 0).all()
    assert (gradient <= 1e-6).all()
    assert np.abs(gradient[x > 1e-9]).max(initial=0.0) < 1e-6
