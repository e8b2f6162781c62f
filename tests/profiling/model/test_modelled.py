"""Real kernels through the compiler, the disassembler, the emulator and the model: good edits must pay."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from mctskernel.core.evaluation import Bottleneck
from mctskernel.core.kernel import Kernel
from mctskernel.core.launch_plan import plan_of, resolve
from mctskernel.core.task import Array
from mctskernel.profiling import counters
from mctskernel.profiling.architecture import load_architecture
from mctskernel.profiling.build import Build, build
from mctskernel.profiling.candidate import Candidate
from mctskernel.profiling.emulator import Limits, parse_ptx
from mctskernel.profiling.machine_code.disassembly import disassemble
from mctskernel.profiling.machine_code.interpretation import Uninterpreted
from mctskernel.profiling.model.modelled import Modelled, Unmodelled, model_kernel

H100 = load_architecture("H100")
N = 1 << 24


def never(name: str) -> Array:
    raise AssertionError(f"the contents of {name} were asked for")


def attempt(source: str, contents: Callable[[str], Array] = never, **sizes: int) -> Modelled | Unmodelled:
    kernel = Kernel(source)
    plan = plan_of(kernel)
    built = build(kernel, [launch.kernel for launch in plan.launches])
    assert isinstance(built, Build), built.message
    buffers = sizes or {"x": 4 * N, "y": 4 * N}
    resolved = resolve(plan, {"n": N, **kernel.macros}, tuple(buffers))
    candidate = Candidate(kernel, (resolved,), (built,), tuple((each, 0) for each in resolved.launches))
    return model_kernel(
        candidate,
        lambda _: parse_ptx(built.ptx),
        lambda _: disassemble(built.cubin),
        resolved,
        H100,
        buffers=buffers,
        contents=contents,
    )


@cache
def modelled(source: str) -> Modelled:
    found = attempt(source)
    assert isinstance(found, Modelled), found
    return found


COPY = """/*
[[launch]]
kernel = "k"
grid = ["n // 256"]
block = [256]
args = ["x", "y"]
*/
extern "C" __global__ void k(const float* x, float* y) {
    int i = blockIdx.x * 256 + threadIdx.x;
    y[i] = x[INDEX];
}
"""
COALESCED = COPY.replace("INDEX", "i")
STRIDED = COPY.replace("INDEX", "(i * 32) % (1 << 24) + i / (1 << 19)")
VECTORS = COPY.replace("n // 256", "n // 1024").replace(
    "y[i] = x[INDEX]", "((float4*)y)[i] = ((const float4*)x)[i]"
)
TRANSPOSE = """/*
[[launch]]
kernel = "k"
grid = [128, 128]
block = [32, 8]
args = ["x", "y"]
*/
extern "C" __global__ void k(const float* x, float* y) {
    __shared__ float tile[32][32 + PAD];
    int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8) tile[threadIdx.y + j][threadIdx.x] = x[(r + j) * 4096 + c];
    __syncthreads();
    c = blockIdx.y * 32 + threadIdx.x; r = blockIdx.x * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8) y[(r + j) * 4096 + c] = tile[threadIdx.x][threadIdx.y + j];
}
"""


def test_a_copy_is_bound_by_dram_at_the_true_traffic() -> None:
    found = modelled(COALESCED)
    assert found.counters[counters.DRAM_BYTES] == pytest.approx(8 * N, rel=0.02)
    assert found.counters[counters.SECTORS_PER_LOAD] == pytest.approx(4.0)
    assert found.counters[counters.LOAD_REQUESTS] == N / 32
    assert found.diagnosis.causes[0].bottleneck in {Bottleneck.DRAM_BANDWIDTH, Bottleneck.LAUNCH_OVERHEAD}


def test_uncoalesced_loads_cost_and_are_named_with_their_line() -> None:
    found = modelled(STRIDED)
    assert found.seconds > 1.5 * modelled(COALESCED).seconds
    cause = next(c for c in found.diagnosis.causes if c.bottleneck is Bottleneck.UNCOALESCED_ACCESS)
    assert "load of x (line 10) touches 32 sectors where 4 would do, so 8 times" in cause.sentence


def test_vector_loads_need_fewer_instructions() -> None:
    few, many = (modelled(source).counters[counters.INSTRUCTIONS] for source in (VECTORS, COALESCED))
    assert few < 0.4 * many
    assert modelled(VECTORS).seconds < modelled(COALESCED).seconds


def test_bank_conflicts_cost_and_padding_removes_them() -> None:
    conflicts, padded = (modelled(TRANSPOSE.replace("PAD", pad)) for pad in ("0", "1"))
    assert padded.counters[counters.BANK_CONFLICTS] == 0
    assert conflicts.counters[counters.BANK_CONFLICTS] == pytest.approx(31 * N / 32)
    assert conflicts.seconds > 1.2 * padded.seconds
    assert Bottleneck.BANK_CONFLICTS in {cause.bottleneck for cause in conflicts.diagnosis.causes}


def test_buffers_have_no_bytes_unless_their_contents_decide_addresses() -> None:
    gather = COALESCED.replace('"x", "y"', '"p", "x", "y"').replace("k(const", "k(const int* p, const")
    gather = gather.replace("x[i]", "x[p[i]]")
    asked: list[str] = []

    def contents(name: str) -> Array:
        asked.append(name)
        return np.arange(N, dtype=np.int32)

    found = attempt(gather, contents, p=4 * N, x=4 * N, y=4 * N)
    assert isinstance(found, Modelled), found
    assert "p" in asked
    assert "y" not in asked
    assert found.counters[counters.SECTORS_PER_LOAD] == pytest.approx(4.0)


COUNTERS = """/*
[[launch]]
kernel = "k"
grid = [65536]
block = ["BLOCK"]
args = ["y"]
*/
#define BLOCK 256
extern "C" __global__ void k(int* y) {
    for (int i = threadIdx.x; i < 256; i += BLOCK) atomicAdd(&y[WHERE], i);
}
"""


def turns(block: int, where: str) -> float:
    found = modelled(COUNTERS.replace("BLOCK 256", f"BLOCK {block}").replace("WHERE", where))
    (launch,) = found.launches
    return launch.work.atomic_turns


def test_atomics_on_neighbouring_counters_take_turns_whichever_instruction_makes_them() -> None:
    # 256 neighbouring counters that 65536 blocks add to took 680 us on an H100, whatever the size of a block.
    for block in (64, 128, 256):
        assert turns(block, "i") * H100.overheads.same_address_atomic == pytest.approx(680e-6, rel=0.15)


def test_atomics_of_a_block_s_own_do_not_wait_for_others() -> None:
    assert turns(256, "i + 256 * (blockIdx.x % 4096)") < 0.2 * turns(256, "i")
    # The compiler adds up the integers of a warp.
    assert turns(256, "0") == 65536 * 8


SPILLED = """/*
[[launch]]
kernel = "k"
grid = ["n // 256"]
block = [256]
args = ["x", "y"]
*/
extern "C" __global__ void k(const float* x, float* y) {
    float kept[SIZE];
    int i = blockIdx.x * 256 + threadIdx.x;
    for (int j = 0; j < SIZE; ++j) kept[j] = x[i] * j;
    float sum = 0.0f;
    for (int j = 0; j < SIZE; ++j) sum += kept[(j + i) % SIZE];
    y[i] = sum;
}
"""


def test_what_is_spilled_beyond_l2_goes_to_dram() -> None:
    # 132 SMs with 2048 threads: 8 MB and 270 MB of local memory.
    few, many = (modelled(SPILLED.replace("SIZE", str(size))).launches[0].work for size in (8, 256))
    assert few.dram_write_bytes == pytest.approx(4 * N, rel=0.02)
    assert many.dram_write_bytes == pytest.approx(4 * 256 * N, rel=0.1)
    assert many.dram_read_bytes == pytest.approx(4 * 257 * N, rel=0.1)
    assert many.l2_write_sectors == pytest.approx(4 * 257 * N / 32, rel=0.1)


def test_launches_add_up_with_the_gap_between_them() -> None:
    launch = COALESCED[COALESCED.index("[[launch]]") : COALESCED.index("*/")]
    twice = modelled(COALESCED.replace(launch, launch + launch))
    once = modelled(COALESCED)
    assert twice.seconds == pytest.approx(2 * once.seconds + H100.overheads.launch_gap)
    assert twice.counters[counters.DRAM_BYTES] == pytest.approx(2 * once.counters[counters.DRAM_BYTES])
    assert twice.counters[counters.SECTORS_PER_LOAD] == pytest.approx(
        once.counters[counters.SECTORS_PER_LOAD]
    )


def test_a_block_that_no_sm_can_hold_is_a_launch_error() -> None:
    found = attempt(COALESCED.replace("block = [256]", "block = [256]\nshared = 240000"))
    assert isinstance(found, Unmodelled)
    assert found.launch_error
    assert "more shared memory than" in found.message


def test_counters_carry_plausible_values() -> None:
    found = modelled(COALESCED).counters
    assert found[counters.TIME] == modelled(COALESCED).seconds
    assert 0 < found[counters.ISSUE_ACTIVE] <= 100
    assert 0 < found[counters.DRAM_THROUGHPUT] <= 100
    assert found[counters.ACTIVE_LANES] == 32
    assert 4 <= found[counters.REGISTERS] <= 32


def test_a_kernel_that_never_ends_is_said_to_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mctskernel.profiling.model.blocks.LIMITS", Limits(block_executions=2_000))
    spinning = COPY.replace("y[i] = x[INDEX]", "while (clock64() >= 0) y[i] = 1.0f")
    found = attempt(spinning)
    assert isinstance(found, Unmodelled)
    assert "still running after the limit of 2,000 basic blocks" in found.message


def test_a_grid_of_a_billion_blocks_is_priced_from_three_of_them() -> None:
    endless = COALESCED.replace('["n // 256"]', "[1000000000]").replace("[i]", "[i & 16777215]")
    found = attempt(endless)
    assert isinstance(found, Modelled)
    assert found.terms["block launch"] == pytest.approx(1e9 * H100.overheads.block_launch)


def test_code_that_the_interpreter_does_not_know_is_counted_by_its_ptx(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exact = modelled(COALESCED)
    unknown = Uninterpreted("The interpreter doesn't know the instruction 'NEW'.")
    monkeypatch.setattr("mctskernel.profiling.model.blocks.interpretable", lambda *_: unknown)
    found = attempt(COALESCED)
    assert isinstance(found, Modelled)
    assert found.seconds == pytest.approx(exact.seconds, rel=0.1)
    assert exact.launches[0].note == ""
    assert found.launches[0].note == "Counted by its PTX: the interpreter doesn't know the instruction 'NEW'."


def test_rows_of_uneven_length_are_counted_in_more_blocks_than_three() -> None:
    loop = "for (int j = 0; j < ((const int*)x)[i]; j++) s += j"
    source = COPY.replace("y[i] = x[INDEX]", f"float s = 0; {loop}; y[i] = s")
    lengths = np.zeros(N, np.int32)
    lengths[N // 2 :: 1 << 12] = 64
    found = attempt(source, lambda _: lengths.view(np.float32))
    even = attempt(source, lambda _: np.zeros(N, np.float32))
    assert isinstance(found, Modelled)
    assert isinstance(even, Modelled)
    assert found.counters[counters.INSTRUCTIONS] > even.counters[counters.INSTRUCTIONS]
