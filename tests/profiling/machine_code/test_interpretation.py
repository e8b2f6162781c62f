"""Machine code counted by interpreting it: against the PTX emulator, and where data decide."""

from collections import Counter

import numpy as np
import pytest

from mctskernel.profiling.emulator import Geometry, GlobalMemory, Limits
from mctskernel.profiling.machine_code.interpretation import (
    Interpretation,
    Uninterpreted,
    interpret,
    interpretable,
)
from tests.profiling.machine_code.machine_programs import (
    assembled,
    both,
    compiled,
    interpreted,
    sectors,
)

HEAD = 'extern "C" __global__ void k'
KERNELS = {
    "transpose through shared memory": (
        HEAD
        + """(const float* a, float* b, int n) {
            __shared__ float s[32][33];
            int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
            for (int j = 0; j < 32; j += 8) s[threadIdx.y + j][threadIdx.x] = a[(y + j) * n + x];
            __syncthreads();
            x = blockIdx.y * 32 + threadIdx.x, y = blockIdx.x * 32 + threadIdx.y;
            for (int j = 0; j < 32; j += 8) b[(y + j) * n + x] = s[threadIdx.x][threadIdx.y + j];
        }""",
        Geometry((4, 4, 1), (32, 8, 1)),
        (np.zeros(16384, "f4"), np.zeros(16384, "f4"), 128),
    ),
    "division and remainder of 32 bits": (
        HEAD
        + """(const float* a, float* b, int n, unsigned m) {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            b[(i % n) * 64 + (unsigned) i / m] = a[(i - 500) / n + 512];
        }""",
        Geometry((8, 1, 1), (128, 1, 1)),
        (np.zeros(4096, "f4"), np.zeros(65536, "f4"), 37, 19),
    ),
    "division of 64 bits, which is a call": (
        HEAD
        + """(const float* a, float* b, long long n) {
            long long i = blockIdx.x * blockDim.x + threadIdx.x + (1ll << 40);
            b[i % n] = a[i / n - (1ll << 40) / n];
        }""",
        Geometry((4, 1, 1), (96, 1, 1)),
        (np.zeros(4096, "f4"), np.zeros(4096, "f4"), 1001),
    ),
    "bounds and strides": (
        HEAD
        + """(const float* a, float* b, int n) {
            for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
                b[i] = a[i] + a[i * 3 % n];
        }""",
        Geometry((3, 1, 1), (96, 1, 1)),
        (np.zeros(1000, "f4"), np.zeros(1000, "f4"), 1000),
    ),
    "vectors": (
        HEAD
        + """(const float4* a, float2* b) {
            float4 v = a[threadIdx.x ^ 5];
            b[threadIdx.x * 2] = make_float2(v.x + v.y, v.z + v.w);
        }""",
        Geometry((1, 1, 1), (64, 1, 1)),
        (np.zeros(256, "f4"), np.zeros(256, "f4")),
    ),
    "addresses from memory": (
        HEAD
        + """(const int* rows, const int* columns, const float* x, float* y) {
            float sum = 0;
            for (int j = rows[threadIdx.x]; j < rows[threadIdx.x + 1]; j++) sum += x[columns[j]];
            y[threadIdx.x] = sum;
        }""",
        Geometry((1, 1, 1), (32, 1, 1)),
        (
            np.arange(33, dtype="i4") * 2,
            np.arange(64, dtype="i4")[::-1] * 7 % 100,
            np.zeros(100, "f4"),
            np.zeros(32, "f4"),
        ),
    ),
    "addresses through shared memory": (
        HEAD
        + """(const int* order, const float* a, float* b) {
            __shared__ int s[64];
            s[threadIdx.x] = order[threadIdx.x];
            __syncthreads();
            b[s[63 - threadIdx.x]] = a[threadIdx.x];
        }""",
        Geometry((1, 1, 1), (64, 1, 1)),
        (np.arange(64, dtype="i4") * 9 % 512, np.zeros(64, "f4"), np.zeros(512, "f4")),
    ),
    "atomics": (
        HEAD
        + """(const int* bins, int* counts) {
            atomicAdd(&counts[bins[blockIdx.x * blockDim.x + threadIdx.x] * 8], 1);
        }""",
        Geometry((2, 1, 1), (64, 1, 1)),
        (np.arange(128, dtype="i4") * 5 % 16, np.zeros(128, "i4")),
    ),
}
KINDS = {"load": ("load", "copy"), "store": ("store",), "atomic": ("atomic", "reduction")}


@pytest.mark.parametrize("architecture", ["sm_90", "sm_80", "sm_100"])
@pytest.mark.parametrize("name", KERNELS)
def test_global_sectors_are_those_of_the_ptx(name: str, architecture: str) -> None:
    source, geometry, arguments = KERNELS[name]
    blocks = (0, geometry.blocks - 1)
    found = both(source, geometry, arguments, blocks=blocks, architecture=architecture)
    for kinds in KINDS.values():
        assert sectors(found.interpreted.counts, kinds) == sectors(found.emulated, kinds)


def test_shared_memory_conflicts_are_those_of_the_ptx() -> None:
    source, geometry, arguments = KERNELS["transpose through shared memory"]
    found = both(source.replace("33", "32"), geometry, arguments)
    fronts = [
        sum(a.wavefronts for a in counts.accesses if a.space == "shared")
        for counts in (found.interpreted.counts, found.emulated)
    ]
    assert fronts[0] == fronts[1] == 32 + 32 * 32


def test_instructions_are_counted_whether_or_not_lanes_act() -> None:
    found = interpreted(
        """
        S2R R2, SR_TID.X
        ISETP.GT.AND P0, PT, R2, 0x3f, PT
        @P0 STS [R2], R3
        @P0 EXIT
        STS [R2], R3
        EXIT
    """,
        block=96,
    )
    assert isinstance(found, Interpretation)
    assert found.executions.tolist() == [3, 3, 3, 3, 2, 2]
    assert [a.requests for a in found.counts.accesses] == [1, 2]
    assert found.shared_wavefronts == 2 + 1 + 2 + found.warps


LOOP = """
    MOV R2, RZ
again:
    VIADD R2, R2, 0x1
    ISETP.NE.AND P0, PT, R2, 0x5, PT
    @P0 BRA again
    EXIT
"""


def test_paths_say_which_blocks_a_warp_went_through() -> None:
    found = interpreted(LOOP, block=128)
    assert isinstance(found, Interpretation)
    assert [path.blocks for path in found.paths] == [(0, 1, 1, 1, 1, 1, 2)] * 3
    assert [path.warps for path in found.paths] == [1, 2, 1]
    blocks = Counter(found.paths[0].blocks)
    assert found.executions.tolist() == [4 * blocks[0], *[4 * blocks[1]] * 3, 4 * blocks[2]]


def test_what_ends_never_ends_in_a_sentence() -> None:
    code = interpretable(assembled("again:\n BRA again"))
    assert not isinstance(code, Uninterpreted)
    limits = Limits(lane_instructions=100_000)
    found = interpret(code, b"", GlobalMemory(), Geometry((1, 1, 1), (32, 1, 1)), limits=limits)
    assert isinstance(found, Uninterpreted)
    assert "still running after the limit of 100,000 lane-instructions" in found.message


def test_a_grid_of_a_billion_blocks_costs_what_one_block_does() -> None:
    code = interpretable(assembled(LOOP))
    assert not isinstance(code, Uninterpreted)
    geometry = Geometry((2**20, 2**10, 1), (32, 1, 1))
    found = interpret(code, b"", GlobalMemory(), geometry, blocks=(geometry.blocks - 1,))
    assert isinstance(found, Interpretation)


def test_an_unknown_instruction_is_named() -> None:
    found = interpretable(assembled("MOV R2, RZ\nFROBNICATE.X R2, R3\nEXIT"))
    assert found == Uninterpreted("The interpreter doesn't know the instruction 'FROBNICATE.X R2, R3'.")


def test_an_address_that_tensor_instructions_make_is_named() -> None:
    found = interpretable(assembled("HMMA.16816.F32 R4, R8, R12, R4\nLDG.E R2, desc[UR4][R4.64]\nEXIT"))
    assert isinstance(found, Uninterpreted)
    assert "HMMA.16816.F32" in found.message


def test_contents_that_decide_are_asked_for() -> None:
    source, geometry, _ = KERNELS["atomics"]
    made, function = compiled(source)
    code = interpretable(function, made.cubin)
    assert not isinstance(code, Uninterpreted)
    memory = GlobalMemory()
    addresses = [memory.add(name, 4096, virtual=True) for name in ("bins", "counts")]
    found = interpret(code, np.array(addresses, "u8").tobytes(), memory, geometry)
    assert isinstance(found, Interpretation)
    assert found.counts.needs == ("bins",)


DATA = """
    S2R R2, SR_TID.X
    IMAD.WIDE R2, R2, 0x4, RZ
    LDG.E R5, desc[UR4][R2.64]
    FSETP.GT.AND P0, PT, R5, RZ, PT
    @P0 BRA there
    FADD R6, R5, R5
    EXIT
there:
    FMUL R6, R5, R5
    EXIT
"""


@pytest.mark.parametrize(("share", "both_ways"), [(0.0, False), (1.0, False), (0.25, False), (1.0, True)])
def test_branches_on_floats_go_as_often_as_the_ptx_did(share: float, both_ways: bool) -> None:
    lines = {0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0, 5: 1.0 if both_ways else 1.0 - share, 7: share}
    found = interpreted(DATA, block=256, line_counts=lines)
    assert isinstance(found, Interpretation)
    assert found.executions[7] == round(8 * share)
    assert found.executions[5] == (8 if both_ways else round(8 * (1 - share)))


def test_loops_on_floats_run_as_often_as_the_ptx_did() -> None:
    text = """
        LDG.E R5, desc[UR4][R2.64]
    again:
        FADD R5, R5, R5
        FSETP.GT.AND P0, PT, R5, RZ, PT
        @P0 BRA again
        EXIT
    """
    lines = {0: 1.0, 1: 10.0, 2: 10.0, 4: 1.0}
    found = interpreted(text, block=64, line_counts=lines)
    assert isinstance(found, Interpretation)
    assert found.executions[1] == pytest.approx(20, abs=2)


def test_special_cases_within_one_ptx_instruction_are_rare() -> None:
    source = HEAD + "(const float* a, float* b) { b[threadIdx.x] = 1.0f / a[threadIdx.x]; }"
    found = both(source, Geometry((1, 1, 1), (64, 1, 1)), (np.ones(64, "f4"), np.ones(64, "f4")))
    calls = [
        executed
        for instruction, executed in zip(
            found.function.instructions, found.interpreted.executions, strict=True
        )
        if instruction.mnemonic == "CALL"
    ]
    assert calls == [0]


def test_a_float_register_that_held_an_address_is_told_from_it() -> None:
    found = interpreted("""
        S2R R2, SR_TID.X
        IMAD.WIDE R2, R2, 0x4, RZ
    again:
        LDG.E R4, desc[UR4][R2.64]
        ISETP.GT.AND P1, PT, R6, 0x3, PT
        VIADD R6, R6, 0x1
        IADD3 R2, P0, R2, 0x80, RZ
        IMAD.X R3, RZ, RZ, R3, P0
        @!P1 LDS R8, [RZ]
        SHFL.BFLY PT, R9, R8, 0x1, 0x1f
        @!P1 BRA again
        STG.E desc[UR4][R2.64], R9
        HMMA.16816.F32 R4, R8, R12, R4
        PRMT R2, R4, 0x7610, R2
        STS [RZ], R2
        EXIT
    """)
    assert isinstance(found, Interpretation)
    assert found.counts.needs == ()
    assert found.counts.accesses[0].requests == 5
