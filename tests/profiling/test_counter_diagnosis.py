"""The diagnosis of measured kernels: counters read on an H100, and the cause that was planted in each."""

from __future__ import annotations

import pytest

from mctskernel.core.evaluation import Bottleneck, Diagnosis
from mctskernel.core.kernel import Kernel
from mctskernel.profiling import counters as names
from mctskernel.profiling.architecture import load_architecture
from mctskernel.profiling.build import Build, build
from mctskernel.profiling.counter_diagnosis import diagnose_counters, widest_access

H100 = load_architecture("H100")

# Read with the default set on an H100, of kernels that each stress one unit.
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
    ],
    ids=["copy", "transpose", "conflicts", "exponentials"],
)
def test_the_planted_cause_comes_first_with_its_numbers(
    counters: dict[str, float], access_bytes: int, bottleneck: Bottleneck, words: str
) -> None:
    cause = diagnose_counters(counters, H100, access_bytes).causes[0]
    assert cause.bottleneck is bottleneck
    assert words in cause.sentence
    assert 0.4 < cause.share <= 1.0


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
