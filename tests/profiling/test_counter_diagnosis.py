"""The diagnosis of measured kernels: counters read on an H100, and the cause that was planted in each."""

from __future__ import annotations

import pytest

from mctskernel.core.evaluation import Bottleneck, Diagnosis
from mctskernel.core.kernel import Kernel
from mctskernel.profiling import counters as names
from mctskernel.profiling.architecture import load_architecture
from mctskernel.profiling.build import Build, build
from mctskernel.profiling.counter_diagnosis import diagnose_counters, diagnose_launches, widest_access
from mctskernel.profiling.counter_sets import DEAR_METRICS

H100 = load_architecture("H100")

# Read with the default set by `mctskernel.experiments.compare_counters`, whose source has the kernels.
COPY = {
    names.TIME: 9.178e-05,
    names.INSTRUCTIONS: 3.408e6,
    names.ISSUE_ACTIVE: 3.731,
    names.WARPS_ACTIVE: 78.17,
    names.SM_ACTIVE: 97.04,
    names.DRAM_BYTES: 2.674e8,
    names.DRAM_THROUGHPUT: 86.94,
    names.LOAD_REQUESTS: 262144.0,
    names.LOAD_SECTORS: 4.194e6,
    names.STORE_REQUESTS: 262144.0,
    names.STORE_SECTORS: 4.194e6,
    names.WAVEFRONTS: 2.599e6,
    names.WAVEFRONTS_BUSY: 10.98,
    names.SHARED_WAVEFRONTS: 262144.0,
    names.L2_SECTORS: 8.389e6,
    names.L2_BUSY: 34.03,
    names.L2_HIT_RATE: 50.15,
    names.ACTIVE_LANES: 32.0,
    names.STALL_LONG_SCOREBOARD: 320.4,
    names.STALL_SHORT_SCOREBOARD: 3.226,
}
TRANSPOSE = {
    names.TIME: 5.864e-4,
    names.INSTRUCTIONS: 2.202e7,
    names.ISSUE_ACTIVE: 3.71,
    names.WARPS_ACTIVE: 57.1,
    names.SM_ACTIVE: 98.78,
    names.DRAM_BYTES: 2.836e8,
    names.DRAM_THROUGHPUT: 14.43,
    names.LOAD_REQUESTS: 1.049e6,
    names.LOAD_SECTORS: 4.194e6,
    names.STORE_REQUESTS: 1.049e6,
    names.STORE_SECTORS: 3.355e7,
    names.WAVEFRONTS: 3.816e7,
    names.WAVEFRONTS_BUSY: 24.89,
    names.SHARED_WAVEFRONTS: 2.097e6,
    names.L2_SECTORS: 3.775e7,
    names.L2_BUSY: 23.76,
    names.ACTIVE_LANES: 32.0,
    names.STALL_LONG_SCOREBOARD: 75.39,
    names.STALL_SHORT_SCOREBOARD: 5.625,
}
CONFLICTS = {
    names.TIME: 4.295e-3,
    names.INSTRUCTIONS: 2.233e8,
    names.ISSUE_ACTIVE: 4.992,
    names.WARPS_ACTIVE: 96.23,
    names.SM_ACTIVE: 99.66,
    names.DRAM_THROUGHPUT: 1.891,
    names.WAVEFRONTS: 1.113e9,
    names.WAVEFRONTS_BUSY: 99.17,
    names.SHARED_WAVEFRONTS: 1.111e9,
    names.BANK_CONFLICTS: 1.074e9,
    names.STALL_SHORT_SCOREBOARD: 28.3,
    names.STALL_BARRIER: 5.959,
}
MULTIPLY_ADDS = {
    names.TIME: 2.771e-4,
    names.INSTRUCTIONS: 2.776e8,
    names.ISSUE_ACTIVE: 98.24,
    names.WARPS_ACTIVE: 90.03,
    names.SM_ACTIVE: 97.92,
    names.DRAM_THROUGHPUT: 3.909,
    names.FMA_BUSY: 95.13,
    names.TENSOR_BUSY: 0.1853,
}
EXPONENTIALS = {
    names.TIME: 2.738e-4,
    names.INSTRUCTIONS: 2.375e8,
    names.ISSUE_ACTIVE: 83.78,
    names.WARPS_ACTIVE: 94.02,
    names.SM_ACTIVE: 99.18,
    names.SPECIAL_BUSY: 94.64,
    names.FMA_BUSY: 47.69,
    names.ALU_BUSY: 37.34,
    names.ACTIVE_LANES: 14.76,
}
TENSOR = {
    names.TIME: 2.286e-4,
    names.INSTRUCTIONS: 3.768e7,
    names.ISSUE_ACTIVE: 17.95,
    names.WARPS_ACTIVE: 77.81,
    names.SM_ACTIVE: 98.41,
    names.TENSOR_ACTIVE: 32.94,
    names.TENSOR_BUSY: 98.83,
}
# `ncu` on a 2048^3 matmul, one thread an element of C and a warp down its column: totals only, no percentages.
NAIVE_MATMUL = {
    names.TIME: 0.035316128,
    names.CYCLES: 69920639.0,
    names.INSTRUCTIONS: 1025769472.0,
    names.DRAM_READ: 21432832.0,
    names.DRAM_WRITE: 15317760.0,
    names.WAVEFRONTS: 8863189053.0,
    names.SHARED_WAVEFRONTS: 262144.0,
    names.LOAD_REQUESTS: 536870912.0,
    names.LOAD_SECTORS: 8858370048.0,
    names.L2_SECTORS: 69461469.0,
    names.FMA_INSTRUCTIONS: 302120960.0,
    names.ALU_INSTRUCTIONS: 101318656.0,
    names.WARPS_ACTIVE: 97.46,
}


@pytest.mark.parametrize(
    ("counters", "access_bytes", "bottleneck", "words"),
    [
        (COPY, 16, Bottleneck.DRAM_BANDWIDTH, "267 MB move at 2.91 TB/s, 94% of what a copy reaches"),
        (TRANSPOSE, 4, Bottleneck.UNCOALESCED_ACCESS, "a warp store touches 32 sectors on average where 4"),
        (
            CONFLICTS,
            4,
            Bottleneck.BANK_CONFLICTS,
            "1.07 billion of 1.11 billion cycles of shared memory (97%)",
        ),
        (EXPONENTIALS, 4, Bottleneck.SPECIAL_FUNCTIONS, "busy 94% of the time with exp"),
        (TENSOR, 4, Bottleneck.TENSOR_PIPE, "busy 97% of the time"),
        (NAIVE_MATMUL, 4, Bottleneck.UNCOALESCED_ACCESS, "a warp load touches 16.5 sectors on average"),
    ],
    ids=["copy", "transpose", "conflicts", "exponentials", "tensor", "naive matmul"],
)
def test_the_planted_cause_comes_first_with_its_numbers(
    counters: dict[str, float], access_bytes: int, bottleneck: Bottleneck, words: str
) -> None:
    cause = diagnose_counters(counters, H100, access_bytes).causes[0]
    assert cause.bottleneck is bottleneck
    assert words in cause.sentence
    assert 0.4 < cause.share <= 1.0


def test_multiply_adds_bind_the_schedulers_and_their_pipe() -> None:
    found = shares(diagnose_counters(MULTIPLY_ADDS, H100))
    assert found[Bottleneck.INSTRUCTION_ISSUE] + found[Bottleneck.FP32_PIPE] > 0.9


def test_divergence_takes_its_part_of_the_instructions() -> None:
    (cause,) = (
        cause
        for cause in diagnose_counters(EXPONENTIALS, H100).causes
        if cause.bottleneck is Bottleneck.DIVERGENCE
    )
    assert "15 of a warp's 32 lanes" in cause.sentence


def test_wide_accesses_are_not_called_uncoalesced() -> None:
    assert Bottleneck.UNCOALESCED_ACCESS not in shares(diagnose_counters(COPY, H100, 16))
    assert Bottleneck.UNCOALESCED_ACCESS in shares(diagnose_counters(COPY, H100, 4))


@pytest.mark.parametrize(
    ("stall", "bottleneck"),
    [
        (names.STALL_LONG_SCOREBOARD, Bottleneck.GLOBAL_LATENCY),
        (names.STALL_BARRIER, Bottleneck.BARRIERS),
        (names.STALL_LG_THROTTLE, Bottleneck.L1_THROUGHPUT),
        (names.STALL_SHORT_SCOREBOARD, Bottleneck.SHARED_THROUGHPUT),
    ],
)
def test_where_nothing_is_busy_the_stalls_say_what_is_waited_for(stall: str, bottleneck: Bottleneck) -> None:
    counters = {names.TIME: 1e-3, names.ISSUE_ACTIVE: 10.0, names.WARPS_ACTIVE: 80.0, stall: 100.0}
    cause = diagnose_counters(counters, H100).causes[0]
    assert cause.bottleneck is bottleneck
    assert "100.0 warps" in cause.sentence


def test_unexplained_waiting_is_low_occupancy_or_dependent_instructions() -> None:
    counters = {names.TIME: 1e-3, names.ISSUE_ACTIVE: 20.0, names.WARPS_ACTIVE: 12.0}
    assert diagnose_counters(counters, H100).causes[0].bottleneck is Bottleneck.LOW_OCCUPANCY
    counters[names.WARPS_ACTIVE] = 90.0
    assert diagnose_counters(counters, H100).causes[0].bottleneck is Bottleneck.INSTRUCTION_ISSUE


def test_atomics_on_one_address_are_named() -> None:
    counters = {names.TIME: 1e-3, names.SM_ACTIVE: 99.0, names.L2_REDUCTIONS: 5e5, names.WARPS_ACTIVE: 90.0}
    cause = diagnose_counters(counters, H100).causes[0]
    assert cause.bottleneck is Bottleneck.ATOMICS
    assert "500,000 sectors of atomic operations" in cause.sentence


@pytest.mark.parametrize(
    ("seconds", "active", "bottleneck"),
    [
        (3e-6, 30.0, Bottleneck.LAUNCH_OVERHEAD),
        (1e-3, 5.0, Bottleneck.TOO_FEW_BLOCKS),
        (1e-3, 70.0, Bottleneck.TAIL),
    ],
)
def test_idle_multiprocessors_are_named(seconds: float, active: float, bottleneck: Bottleneck) -> None:
    found = shares(diagnose_counters({names.TIME: seconds, names.SM_ACTIVE: active}, H100))
    assert found[bottleneck] == pytest.approx(1.0 - active / 100.0)


def test_shares_are_fractions_of_the_time() -> None:
    for counters in (COPY, TRANSPOSE, CONFLICTS, MULTIPLY_ADDS, EXPONENTIALS, TENSOR, NAIVE_MATMUL, {}):
        for gpu in (H100, None):
            found = [cause.share for cause in diagnose_counters(counters, gpu).causes]
            assert found == sorted(found, reverse=True)
            assert 0.0 <= sum(found) <= 1.0 + 1e-9


def test_launches_count_by_their_time() -> None:
    found = shares(diagnose_launches([COPY, CONFLICTS], H100))
    whole = COPY[names.TIME] + CONFLICTS[names.TIME]
    assert found[Bottleneck.BANK_CONFLICTS] == pytest.approx(0.96 * CONFLICTS[names.TIME] / whole, rel=0.02)


@pytest.mark.parametrize(
    ("statement", "width"),
    [
        ("y[i] = x[i];", 4),
        ("((float2*)y)[i] = ((float2*)x)[i];", 8),
        ("((float4*)y)[i] = ((float4*)x)[i];", 16),
        ("((char*)y)[i] = 1;", 1),
        ("((double*)y)[i] = 1;", 8),
    ],
)
def test_the_widest_access_is_read_from_ptx(statement: str, width: int) -> None:
    source = f'extern "C" __global__ void k(const float* __restrict__ x, float* y, int i) {{ {statement} }}'
    made = build(Kernel(source), ("k",))
    assert isinstance(made, Build)
    assert widest_access(made.ptx) == width


def shares(diagnosis: Diagnosis) -> dict[Bottleneck, float]:
    return {cause.bottleneck: cause.share for cause in diagnosis.causes}


def few(counters: dict[str, float]) -> dict[str, float]:
    """The same kernel as few counters show it."""
    sectors = counters[names.LOAD_SECTORS] + counters[names.STORE_SECTORS]
    kept = {name: value for name, value in counters.items() if name not in DEAR_METRICS}
    return {**kept, names.L1_SECTORS: sectors, names.L1_FROM_L2: counters[names.LOAD_SECTORS]}


@pytest.mark.parametrize("counters", [COPY, TRANSPOSE])
def test_few_counters_tell_the_same_first_cause(counters: dict[str, float]) -> None:
    whole, part = (diagnose_counters(each, H100, 4).causes[0] for each in (counters, few(counters)))
    assert part.bottleneck is whole.bottleneck
    assert part.share == pytest.approx(whole.share, abs=0.1)


def test_loads_and_stores_are_told_in_one_where_they_were_read_in_one() -> None:
    sentences = [cause.sentence for cause in diagnose_counters(few(TRANSPOSE), H100, 4).causes]
    assert any("a warp access touches 18 sectors on average" in each for each in sentences), sentences
    sentences = [cause.sentence for cause in diagnose_counters(TRANSPOSE, H100, 4).causes]
    assert any("a warp store touches 32 sectors on average" in each for each in sentences), sentences
