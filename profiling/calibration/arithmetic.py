"""Microbenchmarks of the SMs: clock, issue rate, pipes and their latencies, and the cost of launches.

2048 threads on every SM, with eight independent chains each, fill a pipe; one chain of one warp shows a latency.
Results depend on one another and on a value that only the GPU knows, so that the compiler can't remove or precompute
any.
"""

from __future__ import annotations

from mctskernel.profiling.calibration.microbenchmark import Board, Grows, Microbenchmark, Unit
from mctskernel.profiling.gpu.ceiling_kernels import (
    MMA_FLOPS,
    MMA_THREADS,
    WGMMA_FLOPS,
    WGMMA_THREADS,
    WGMMA_TILE_BYTES,
    mma_source,
    wgmma_source,
)

THREADS = 1024
BLOCKS_PER_SM = 2
CHAINS = 8
UNROLLED = 512
"""Instructions in a loop of a few more: what the loop itself issues stays below one per cent."""


def clock(board: Board) -> Microbenchmark:
    """The SMs' clock while all of them multiply and add: each thread goes on until so many cycles have passed."""
    source = """
extern "C" __global__ void probe(unsigned* out, int rounds) {
    float x[8], a = 1.0f + threadIdx.x * 1e-9f;
    for (int j = 0; j < 8; ++j) x[j] = j + a;
    long long end = clock64() + rounds;
    #pragma unroll 1
    while (clock64() < end) {
        #pragma unroll
        for (int j = 0; j < 64; ++j) x[j % 8] = fmaf(x[j % 8], a, a);
    }
    float sum = 0.0f;
    for (int j = 0; j < 8; ++j) sum += x[j];
    if (sum == 12345.0f) out[threadIdx.x] = 1;
}
"""
    return Microbenchmark(
        "chip.clock_hz",
        "cycles that pass in a second while every SM multiplies and adds",
        source,
        board.sms,
        THREADS,
        Unit.PER_SECOND,
        1,
        {"FFMA": 64, "CS2R": 1},
        first=100_000,
    )


def fma(board: Board) -> Microbenchmark:
    """Independent fp32 multiply-adds."""
    return _pipe(board, "throughput.fma", "float", "x[j] = fmaf(x[j], a, b);", "FFMA")


def alu(board: Board) -> Microbenchmark:
    """Logic on three operands. Additions won't do: the compiler moves some of them to the multipliers."""
    return _pipe(board, "throughput.alu", "unsigned", f"x[j] = (x[j] & x[(j + 1) % {CHAINS}]) ^ a;", "LOP3")


def special(board: Board) -> Microbenchmark:
    """Powers of two, which are one instruction when denormal numbers count as zero."""
    return _pipe(board, "throughput.special", "float", _EX2, "MUFU")


def fp64(board: Board) -> Microbenchmark:
    """Independent fp64 multiply-adds."""
    return _pipe(board, "throughput.fp64", "double", "x[j] = fma(x[j], a, b);", "DFMA")


def shuffle(board: Board) -> Microbenchmark:
    """Exchanges between neighbouring lanes."""
    return _pipe(
        board, "throughput.shuffle", "unsigned", "x[j] = __shfl_xor_sync(0xffffffffu, x[j], 1);", "SHFL"
    )


def issue(board: Board) -> Microbenchmark:
    """Warp instructions of two pipes in turn: more than either takes, so only the schedulers are in the way.

    Half of the operands are constants: registers give no more than two a cycle, too few for three in each instruction.
    """
    source = f"""
extern "C" __global__ void probe(unsigned* out, int rounds) {{
    float x[{CHAINS}], a = 1.0f + threadIdx.x * 1e-9f;
    unsigned y[{CHAINS}];
    for (int j = 0; j < {CHAINS}; ++j) {{ x[j] = j + a; y[j] = j + threadIdx.x; }}
    #pragma unroll 1
    for (int i = 0; i < rounds; ++i) {{
        #pragma unroll
        for (int k = 0; k < {UNROLLED // CHAINS // 2}; ++k) {{
            #pragma unroll
            for (int j = 0; j < {CHAINS}; ++j) {{
                x[j] = fmaf(x[j], 1.5f, a);
                y[j] = (y[j] & y[(j + 1) % {CHAINS}]) ^ 0x5a5a5a5au;
            }}
        }}
    }}
    float sum = 0.0f;
    for (int j = 0; j < {CHAINS}; ++j) sum += x[j] + y[j];
    if (sum == 12345.0f) out[threadIdx.x] = 1;
}}
"""
    warps = BLOCKS_PER_SM * board.sms * THREADS // 32
    return Microbenchmark(
        "issue",
        "warp instructions, multiply-adds and logic in turn",
        source,
        BLOCKS_PER_SM * board.sms,
        THREADS,
        Unit.PER_CYCLE_AND_SM,
        warps * UNROLLED,
        {"FFMA": UNROLLED // 2, "LOP3": UNROLLED // 2},
    )


def mma(board: Board) -> Microbenchmark:
    """Dense bf16 multiply-adds of `mma.sync`, with 32-bit sums."""
    blocks = 2 * board.sms
    chains = 8
    return Microbenchmark(
        "throughput.tensor_sync_fma",
        "multiply-adds of eight independent m16n8k16 in a warp",
        mma_source(chains),
        blocks,
        MMA_THREADS,
        Unit.PER_CYCLE_AND_SM,
        blocks * MMA_THREADS // 32 * MMA_FLOPS / 2,
        {"HMMA": chains},
    )


def wgmma(board: Board) -> Microbenchmark:
    """Dense bf16 multiply-adds of `wgmma`, which Hopper alone has."""
    return Microbenchmark(
        "throughput.tensor_fma",
        "multiply-adds of m64n256k16 on zeros in shared memory",
        wgmma_source(),
        board.sms,
        WGMMA_THREADS,
        Unit.PER_CYCLE_AND_SM,
        board.sms * WGMMA_THREADS // 128 * WGMMA_FLOPS / 2,
        {"HGMMA": 4},
        shared_bytes=WGMMA_TILE_BYTES,
        code="sm_90a",
    )


def is_filled_by_mma(board: Board) -> bool:
    """Whether the tensor cores have no wider instruction than `mma.sync`, as data-centre GPUs since Hopper do."""
    return not board.architecture.startswith(("sm_90", "sm_10", "sm_11"))


def special_latency() -> Microbenchmark:
    """A power of two of a power of two."""
    return _chain("latency.special", "float", _EX2, "MUFU")


def barrier_latency() -> Microbenchmark:
    """A block of eight warps that does nothing but meet."""
    meetings = 64
    source = f"""
extern "C" __global__ void probe(unsigned* out, int rounds) {{
    #pragma unroll 1
    for (int i = 0; i < rounds; ++i) {{
        #pragma unroll
        for (int k = 0; k < {meetings}; ++k) __syncthreads();
    }}
    if (rounds < 0) out[threadIdx.x] = 1;
}}
"""
    return Microbenchmark(
        "latency.barrier",
        "barriers of one block of eight warps",
        source,
        1,
        256,
        Unit.CYCLES,
        meetings,
        {"BAR": meetings},
    )


_EX2 = 'asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(x[j]));'


def _pipe(board: Board, constant: str, kind: str, statement: str, opcode: str) -> Microbenchmark:
    blocks = BLOCKS_PER_SM * board.sms
    return Microbenchmark(
        constant,
        f"lanes of {opcode} in {CHAINS} chains of {BLOCKS_PER_SM * THREADS} threads per SM",
        _chains_source(kind, statement, CHAINS),
        blocks,
        THREADS,
        Unit.PER_CYCLE_AND_SM,
        blocks * THREADS * UNROLLED,
        {opcode: UNROLLED},
    )


def _chain(constant: str, kind: str, statement: str, opcode: str) -> Microbenchmark:
    return Microbenchmark(
        constant,
        f"{opcode} that each wait for the last, in one warp",
        _chains_source(kind, statement, 1),
        1,
        32,
        Unit.CYCLES,
        UNROLLED,
        {opcode: UNROLLED},
    )


def _chains_source(kind: str, statement: str, chains: int) -> str:
    """`statement` moves chain `x[j]` one step on, with `a` and `b` that the compiler doesn't know."""
    one = "threadIdx.x" if kind == "unsigned" else "1.0f + threadIdx.x * 1e-9f"
    other = "blockIdx.x" if kind == "unsigned" else "blockIdx.x * 1e-9f"
    return f"""
extern "C" __global__ void probe(unsigned* out, int rounds) {{
    {kind} x[{chains}], a = {one}, b = {other};
    for (int j = 0; j < {chains}; ++j) x[j] = j + a;
    #pragma unroll 1
    for (int i = 0; i < rounds; ++i) {{
        #pragma unroll
        for (int k = 0; k < {UNROLLED // chains}; ++k) {{
            #pragma unroll
            for (int j = 0; j < {chains}; ++j) {{
                {statement}
            }}
        }}
    }}
    {kind} sum = b;
    for (int j = 0; j < {chains}; ++j) sum += x[j];
    if (sum == 12345) out[threadIdx.x] = 1;
}}
"""


EMPTY_SOURCE = """
extern "C" __global__ void probe() {}
"""

QUEUED = 300
"""Most launches that the driver queues without waiting for the first to end."""


def launch() -> Microbenchmark:
    """One block of one warp that does nothing, between two events: here the time itself counts, not its slope."""
    return Microbenchmark(
        "overheads.launch",
        "one kernel that does nothing, between two events",
        EMPTY_SOURCE,
        1,
        32,
        Unit.SECONDS,
        1,
        {"EXIT": 1},
        grows=Grows.NOTHING,
        buffers=(),
    )


def launch_to_launch() -> Microbenchmark:
    """Kernels that do nothing, one behind the other in a full queue: from one launch to the next."""
    return Microbenchmark(
        "overheads.launch_to_launch",
        "from one kernel that does nothing to the next",
        EMPTY_SOURCE,
        1,
        32,
        Unit.SECONDS,
        1,
        {"EXIT": 1},
        grows=Grows.LAUNCHES,
        first=QUEUED // 3,
        most=QUEUED,
        buffers=(),
    )


def block_launch() -> Microbenchmark:
    """Blocks of 128 threads that do nothing, on the whole GPU."""
    return Microbenchmark(
        "overheads.block_launch",
        "blocks of 128 threads that do nothing",
        EMPTY_SOURCE,
        0,
        128,
        Unit.SECONDS,
        1,
        {"EXIT": 1},
        grows=Grows.BLOCKS,
        first=100_000,
        most=30_000_000,
        buffers=(),
    )


def block_turnover(board: Board) -> Microbenchmark:
    """Blocks of 1024 threads of which an SM holds one, because each takes most of the shared memory."""
    return Microbenchmark(
        "latency.block_turnover",
        "from a block of 1024 threads that does nothing to the next on the same SM",
        EMPTY_SOURCE,
        0,
        1024,
        Unit.CYCLES,
        1 / board.sms,
        {"EXIT": 1},
        grows=Grows.BLOCKS,
        first=100 * board.sms,
        most=100_000 * board.sms,
        shared_bytes=board.max_shared_bytes // 10 * 9,
        buffers=(),
    )
