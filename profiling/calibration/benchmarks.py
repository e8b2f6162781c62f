"""The kernels that calibrate a GPU: each loads one part of it.

2048 threads on every SM, with eight independent chains each, fill a pipe; one chain of one warp shows a latency.
Kernels that measure a rate of memory keep so many accesses in flight that latency is hidden. Results depend on one
another and on a value that only the GPU knows, so that the compiler can't remove or precompute any.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mctskernel.profiling.calibration.microbenchmark import Board, Grows, Microbenchmark, Ring, Unit, Zeros
from mctskernel.profiling.gpu.ceiling_kernels import (
    COPY_SOURCE,
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

STEPS = 32
"""Dependent loads in a loop."""

STREAM_THREADS = 256
STREAM_BYTES = 4 * 16
"""That a thread reads, or writes, of a stream."""

STREAM_BLOCKS = 3 << 14
"""768 MB of a stream: many times what any L2 holds."""

LOADED_WARPS = 16
"""On each SM, while the latency of DRAM is measured under load: between the 8 and 32 of common kernels."""

LOADED_BYTES = 1 << 30

QUEUED = 300
"""Most launches that the driver queues without waiting for the first to end."""

EMPTY = 'extern "C" __global__ void probe() {}\n'


def microbenchmarks(board: Board) -> tuple[Microbenchmark, ...]:
    """All that the GPU can run but the clock's, which comes first because the others count in cycles."""
    return (*_pipes(board), *_latencies(board), *_memory(board), *_launches(board))


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


def is_filled_by_mma(board: Board) -> bool:
    """Whether the tensor cores have no wider instruction than `mma.sync`, as data-centre GPUs since Hopper do."""
    return not board.architecture.startswith(("sm_90", "sm_10", "sm_11"))


def _looped(parameters: str, before: str, body: str, after: str) -> str:
    """A kernel that does the same thing `rounds` times."""
    return f"""
extern "C" __global__ void probe({parameters}, int rounds) {{
    {before}
    #pragma unroll 1
    for (int i = 0; i < rounds; ++i) {{
        {body}
    }}
    {after}
}}
"""


def _pipes(board: Board) -> Iterator[Microbenchmark]:
    yield _issue(board)
    yield _pipe(board, "throughput.fma", "float", "x[j] = fmaf(x[j], a, b);", "FFMA")
    # Additions won't do: the compiler moves some of them to the multipliers.
    logic = f"x[j] = (x[j] & x[(j + 1) % {CHAINS}]) ^ a;"
    yield _pipe(board, "throughput.alu", "unsigned", logic, "LOP3")
    yield _pipe(board, "throughput.special", "float", _EX2, "MUFU")
    yield _pipe(board, "throughput.fp64", "double", "x[j] = fma(x[j], a, b);", "DFMA")
    exchange = "x[j] = __shfl_xor_sync(0xffffffffu, x[j], 1);"
    yield _pipe(board, "throughput.shuffle", "unsigned", exchange, "SHFL")
    blocks = 2 * board.sms
    yield Microbenchmark(
        "throughput.tensor_sync_fma",
        "multiply-adds of eight independent m16n8k16 in a warp",
        mma_source(CHAINS),
        blocks,
        MMA_THREADS,
        Unit.PER_CYCLE_AND_SM,
        blocks * MMA_THREADS // 32 * MMA_FLOPS / 2,
        {"HMMA": CHAINS},
    )
    if board.architecture == "sm_90":
        # Hopper alone has it.
        yield Microbenchmark(
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


_EX2 = 'asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(x[j]));'
"""A power of two, which is one instruction when denormal numbers count as zero."""


def _issue(board: Board) -> Microbenchmark:
    """Warp instructions of two pipes in turn: more than either takes, so only the schedulers are in the way.

    Half of the operands are constants: registers give no more than two a cycle, too few for three in each instruction.
    """
    source = _looped(
        "unsigned* out",
        f"""float x[{CHAINS}], a = 1.0f + threadIdx.x * 1e-9f;
    unsigned y[{CHAINS}];
    for (int j = 0; j < {CHAINS}; ++j) {{ x[j] = j + a; y[j] = j + threadIdx.x; }}""",
        f"""#pragma unroll
        for (int k = 0; k < {UNROLLED // CHAINS // 2}; ++k) {{
            #pragma unroll
            for (int j = 0; j < {CHAINS}; ++j) {{
                x[j] = fmaf(x[j], 1.5f, a);
                y[j] = (y[j] & y[(j + 1) % {CHAINS}]) ^ 0x5a5a5a5au;
            }}
        }}""",
        f"""float sum = 0.0f;
    for (int j = 0; j < {CHAINS}; ++j) sum += x[j] + y[j];
    if (sum == 12345.0f) out[threadIdx.x] = 1;""",
    )
    return Microbenchmark(
        "issue",
        "warp instructions, multiply-adds and logic in turn",
        source,
        BLOCKS_PER_SM * board.sms,
        THREADS,
        Unit.PER_CYCLE_AND_SM,
        BLOCKS_PER_SM * board.sms * THREADS // 32 * UNROLLED,
        {"FFMA": UNROLLED // 2, "LOP3": UNROLLED // 2},
    )


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


def _chains_source(kind: str, statement: str, chains: int) -> str:
    """`statement` moves chain `x[j]` one step on, with `a` and `b` that the compiler doesn't know."""
    one = "threadIdx.x" if kind == "unsigned" else "1.0f + threadIdx.x * 1e-9f"
    other = "blockIdx.x" if kind == "unsigned" else "blockIdx.x * 1e-9f"
    return _looped(
        "unsigned* out",
        f"""{kind} x[{chains}], a = {one}, b = {other};
    for (int j = 0; j < {chains}; ++j) x[j] = j + a;""",
        f"""#pragma unroll
        for (int k = 0; k < {UNROLLED // chains}; ++k) {{
            #pragma unroll
            for (int j = 0; j < {chains}; ++j) {{
                {statement}
            }}
        }}""",
        f"""{kind} sum = b;
    for (int j = 0; j < {chains}; ++j) sum += x[j];
    if (sum == 12345) out[threadIdx.x] = 1;""",
    )


def _latencies(board: Board) -> Iterator[Microbenchmark]:
    """Those of one thread which goes from address to address, each read from the last, and others."""
    yield Microbenchmark(
        "latency.special",
        "MUFU that each wait for the last, in one warp",
        _chains_source("float", _EX2, 1),
        1,
        32,
        Unit.CYCLES,
        UNROLLED,
        {"MUFU": UNROLLED},
    )
    meetings = 64
    meet = f"""#pragma unroll
        for (int k = 0; k < {meetings}; ++k) __syncthreads();"""
    yield Microbenchmark(
        "latency.barrier",
        "barriers of one block of eight warps",
        _looped("unsigned* out", "", meet, "if (rounds < 0) out[threadIdx.x] = 1;"),
        1,
        256,
        Unit.CYCLES,
        meetings,
        {"BAR": meetings},
    )
    ring = """__shared__ unsigned ring[32];
    unsigned p = (unsigned)__cvta_generic_to_shared(ring);
    for (int i = 0; i < 32; ++i) ring[i] = p + 4 * ((i + 5) % 32);"""
    yield Microbenchmark(
        "latency.shared",
        "loads from shared memory, each at the address that the last one read",
        _looped("unsigned* out", ring, _steps("ld.shared.u32", "r"), "if (p == 12345) *out = 1;"),
        1,
        1,
        Unit.CYCLES,
        STEPS,
        {"LDS": STEPS},
    )
    # 64 lines, which L1 holds; then 2 MB, which L2 holds, past L1: all of L2's slices take part, near and far ones.
    for name, ring_buffer, cached in (("L1", Ring(8192, 128), ""), ("L2", Ring(2 << 20, 256), ".cg")):
        # Each run goes on where the last one stopped, so that what it left in a cache is no help.
        chase = _looped(
            "unsigned long long* ring",
            "unsigned long long p = *ring;",
            _steps(f"ld.global{cached}.u64", "l"),
            "*ring = p;",
        )
        yield Microbenchmark(
            f"latency.{name.lower()}",
            f"loads that hit in {name}, each at the address that the last one read",
            chase,
            1,
            1,
            Unit.CYCLES,
            STEPS,
            {"LDG": STEPS},
            buffers=(ring_buffer,),
        )
    yield _dram_latency(board)


def _steps(load: str, register: str) -> str:
    return f'asm volatile("{load} %0, [%0];" : "+{register}"(p));\n        ' * STEPS


def _dram_latency(board: Board) -> Microbenchmark:
    """One load in flight for each of 16 warps on every SM: what a kernel waits for that streams without unrolling.

    All lines are read in order, once. The address of a load depends on the one before it, which read a zero.
    """
    unrolled = 4
    source = _looped(
        "const unsigned* in",
        """const unsigned* p = in + blockIdx.x * blockDim.x + threadIdx.x;
    unsigned v = 0, step = gridDim.x * blockDim.x;""",
        'asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(v) : "l"(p)); p += step + v;\n        ' * unrolled,
        "if (v == 12345) *(unsigned*)in = 1;",
    )
    return Microbenchmark(
        "latency.dram",
        f"loads of new lines, one in flight for each of {LOADED_WARPS} warps on every SM",
        source,
        board.sms,
        32 * LOADED_WARPS,
        Unit.CYCLES,
        unrolled,
        {"LDG": unrolled},
        most=LOADED_BYTES // (unrolled * board.sms * LOADED_WARPS * 128),
        buffers=(Zeros(LOADED_BYTES),),
    )


def _memory(board: Board) -> Iterator[Microbenchmark]:
    loads = "".join(
        f'asm volatile("ld.global.cg.v4.u32 {{%0, %1, %2, %3}}, [%4 + {k * STREAM_THREADS * 16}];" : '
        '"=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p)); sum ^= v.x ^ v.y ^ v.z ^ v.w;\n        '
        for k in range(8)
    )
    # Hopper's L2 is asked once for what several SMs ask for at the same time: half as many places doubled the rate.
    reads = f"uint4 v;\n        {loads}"
    yield _in_l2(board, "memory.l2_bytes_per_second", "bytes read from L2, past L1", reads, {"LDG": 8})
    # Whole lines, again and again.
    stores = "".join(
        f'asm volatile("st.global.v4.u32 [%0 + {k * STREAM_THREADS * 16}], {{%1, %1, %1, %1}};" :: '
        '"l"(p), "r"(sum));\n        '
        for k in range(8)
    )
    yield _in_l2(board, "memory.l2_write_bytes_per_second", "bytes written to L2", stores, {"STG": 8})
    threads, per_round = 128, 4
    addition = 'asm volatile("red.global.add.f32 [%0], %1;" :: "l"(out), "f"(one));\n        '
    yield Microbenchmark(
        "overheads.same_address_atomic",
        "a lane that adds a float where all others do",
        _looped("float* out", "float one = threadIdx.x;", addition * per_round, ""),
        board.sms,
        threads,
        Unit.SECONDS,
        board.sms * threads * per_round,
        {"RED": per_round},
        first=1,
    )
    bytes_per_block = STREAM_THREADS * STREAM_BYTES
    yield Microbenchmark(
        "memory.dram_bytes_per_second",
        "bytes copied, read and written",
        COPY_SOURCE,
        0,
        STREAM_THREADS,
        Unit.PER_SECOND,
        2 * bytes_per_block,
        {"LDG": 4, "STG": 4},
        grows=Grows.BLOCKS,
        first=STREAM_BLOCKS // 3,
        most=STREAM_BLOCKS,
        buffers=(Zeros(STREAM_BLOCKS * bytes_per_block),) * 2,
    )


def _in_l2(board: Board, constant: str, why: str, accesses: str, loop: dict[str, int]) -> Microbenchmark:
    """Blocks that jump about half of L2, 32 KB at a time, each in an order of its own: one that followed another would
    find what that has just asked for."""
    blocks, chunk = 4 * board.sms, 8 * STREAM_THREADS * 16
    places = board.l2_bytes // 2 // chunk
    source = _looped(
        "char* data",
        "unsigned sum = 0, at = blockIdx.x * 7u;",
        f"""char* p = data + (size_t)(at % {places}) * {chunk} + threadIdx.x * 16;
        {accesses}
        at = at * 1664525u + 1013904223u;
        at ^= at >> 16;""",
        "if (sum == 12345) *data = 1;",
    )
    return Microbenchmark(
        constant,
        why,
        source,
        blocks,
        STREAM_THREADS,
        Unit.PER_SECOND,
        blocks * chunk,
        loop,
        buffers=(Zeros(places * chunk),),
    )


def _launches(board: Board) -> Iterator[Microbenchmark]:
    """Kernels that do nothing."""

    def empty(  # noqa: PLR0917 - what differs, in the order of the fields
        constant: str,
        why: str,
        unit: Unit,
        grows: Grows,
        blocks: int,
        threads: int,
        first: int = 16,
        most: int = 1 << 28,
    ) -> Microbenchmark:
        return Microbenchmark(
            constant, why, EMPTY, blocks, threads, unit, 1, {"EXIT": 1}, grows, first, most, buffers=()
        )

    # Here the time itself counts, not its slope.
    once = "one kernel that does nothing, between two events"
    yield empty("overheads.launch", once, Unit.SECONDS, Grows.NOTHING, 1, 32)
    to_next = "from one kernel that does nothing to the next"
    yield empty(
        "overheads.launch_to_launch", to_next, Unit.SECONDS, Grows.LAUNCHES, 1, 32, QUEUED // 3, QUEUED
    )
    blocks = "blocks of 128 threads that do nothing"
    yield empty("overheads.block_launch", blocks, Unit.SECONDS, Grows.BLOCKS, 0, 128, 100_000, 30_000_000)
    # An SM holds one of them, because each takes most of the shared memory.
    turnover = empty(
        "latency.block_turnover",
        "from a block of 1024 threads that does nothing to the next on the same SM",
        Unit.CYCLES,
        Grows.BLOCKS,
        0,
        1024,
        100 * board.sms,
        100_000 * board.sms,
    )
    shared_bytes = board.max_shared_bytes // 10 * 9
    yield replace(turnover, amount=1 / board.sms, shared_bytes=shared_bytes)
