"""Microbenchmarks of memory: shared memory, L2, DRAM, atomics, and the latencies of loads.

Kernels that measure a rate keep so many accesses in flight that latency is hidden. They read zeros, and a result
depends on all of them, so that the compiler can remove none. A latency is that of one thread which goes from address
to address, each read from the last.
"""

from __future__ import annotations

from mctskernel.profiling.calibration.microbenchmark import Board, Grows, Microbenchmark, Ring, Unit, Zeros
from mctskernel.profiling.gpu.ceiling_kernels import COPY_SOURCE

THREADS = 1024
BLOCKS_PER_SM = 2
LOADS = 16
"""In a loop of the LSU's microbenchmarks."""

STREAM_THREADS = 256
STREAM_BYTES = 4 * 16
"""That a thread reads, or writes, of a stream."""

STREAM_BLOCKS = 3 << 14
"""768 MB of a stream: many times what any L2 holds."""


def shared_conflicts(board: Board) -> Microbenchmark:
    """Shared loads whose lanes meet in four banks, eight in each, are eight wavefronts each."""
    wavefronts, blocks = 8, BLOCKS_PER_SM * board.sms
    span = 1024
    loads = "\n        ".join(
        f'asm volatile("ld.shared.u32 %0, [%1 + {k * span}];" : "=r"(v) : "r"(p)); sum ^= v;'
        for k in range(LOADS)
    )
    source = f"""
extern "C" __global__ void probe(char* in, int rounds) {{
    __shared__ __align__(16) unsigned char tile[{(LOADS + 3) * span}];
    for (int i = threadIdx.x; i < sizeof(tile); i += blockDim.x) tile[i] = 0;
    __syncthreads();
    unsigned base = (unsigned)__cvta_generic_to_shared(tile) + threadIdx.x % 32 * 32;
    unsigned sum = 0, v;
    #pragma unroll 1
    for (int i = 0; i < rounds; ++i) {{
        // Another place in every round, so that no load can be saved.
        unsigned p = base + (i & 3) * {span};
        {loads}
    }}
    if (sum == 12345) *in = 1;
}}
"""
    return Microbenchmark(
        "throughput.wavefronts",
        f"wavefronts of shared loads of 4 bytes a lane, {wavefronts} for each",
        source,
        blocks,
        THREADS,
        Unit.PER_CYCLE_AND_SM,
        blocks * (THREADS // 32) * LOADS * wavefronts,
        {"LDS": LOADS},
    )


def l2_read(board: Board) -> Microbenchmark:
    """Reads that pass L1 by and hit in L2, 16 bytes a lane, each block at another place.

    Hopper's L2 is asked once for what several SMs ask for at the same time: half as many places doubled the rate.
    """
    loads = "".join(
        f'asm volatile("ld.global.cg.v4.u32 {{%0, %1, %2, %3}}, [%4 + {k * STREAM_THREADS * 16}];" : '
        '"=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p)); sum ^= v.x ^ v.y ^ v.z ^ v.w;\n        '
        for k in range(8)
    )
    return _in_l2(
        board,
        "memory.l2_bytes_per_second",
        "bytes read from L2, past L1",
        f"""
        uint4 v;
        {loads}""",
        {"LDG": 8},
    )


def l2_write(board: Board) -> Microbenchmark:
    """Whole lines written to L2 again and again, each block at another place."""
    stores = "".join(
        f'asm volatile("st.global.v4.u32 [%0 + {k * STREAM_THREADS * 16}], {{%1, %1, %1, %1}};" :: '
        '"l"(p), "r"(sum));\n        '
        for k in range(8)
    )
    return _in_l2(board, "memory.l2_write_bytes_per_second", "bytes written to L2", stores, {"STG": 8})


def l2_store_lines(board: Board) -> Microbenchmark:
    """Stores whose lanes write 4 bytes of a line of their own each, as those of a transpose do."""
    # About as many lanes as the buffer has lines, so that no two write the same one at a time.
    blocks, per_round = 2 * board.sms, 8
    nbytes = board.l2_resident_bytes
    stores = "".join(
        f'asm volatile("st.global.u32 [%0], %1;" :: "l"(out + (((line + {k} * lanes) & {nbytes // 128 - 1}) << 7)), '
        '"r"(i));\n        '
        for k in range(per_round)
    )
    source = f"""
extern "C" __global__ void probe(char* out, int rounds) {{
    unsigned lanes = gridDim.x * blockDim.x, line = blockIdx.x * blockDim.x + threadIdx.x;
    #pragma unroll 1
    for (int i = 0; i < rounds; ++i) {{
        {stores}
        line += {per_round} * lanes;
    }}
}}
"""
    return Microbenchmark(
        "memory.l2_store_lines_per_second",
        "lines of which a lane writes 4 bytes",
        source,
        blocks,
        STREAM_THREADS,
        Unit.PER_SECOND,
        blocks * STREAM_THREADS * per_round,
        {"STG": per_round},
        first=1,
        buffers=(Zeros(nbytes),),
    )


def l2_atomics(board: Board) -> Microbenchmark:
    """Additions of floats to addresses of their own, a warp's side by side."""
    blocks, per_round = 2 * board.sms, 8
    nbytes = board.l2_resident_bytes
    additions = "".join(
        f'asm volatile("red.global.add.f32 [%0], %1;" :: '
        f'"l"(out + (((at + {k} * lanes) & {nbytes // 4 - 1}) << 2)), "f"(one));\n        '
        for k in range(per_round)
    )
    source = f"""
extern "C" __global__ void probe(char* out, int rounds) {{
    unsigned lanes = gridDim.x * blockDim.x, at = blockIdx.x * blockDim.x + threadIdx.x;
    float one = 1.0f;
    #pragma unroll 1
    for (int i = 0; i < rounds; ++i) {{
        {additions}
        at += {per_round} * lanes;
    }}
}}
"""
    return Microbenchmark(
        "memory.l2_atomics_per_second",
        "lanes that add a float each at an address of their own",
        source,
        blocks,
        THREADS,
        Unit.PER_SECOND,
        blocks * THREADS * per_round,
        {"RED": per_round},
        first=1,
        buffers=(Zeros(nbytes),),
    )


def same_address_atomics(board: Board) -> Microbenchmark:
    """Additions of floats, all to one address."""
    threads, per_round = 128, 4
    additions = 'asm volatile("red.global.add.f32 [%0], %1;" :: "l"(out), "f"(one));\n        ' * per_round
    source = f"""
extern "C" __global__ void probe(float* out, int rounds) {{
    float one = threadIdx.x;
    #pragma unroll 1
    for (int i = 0; i < rounds; ++i) {{
        {additions}
    }}
}}
"""
    return Microbenchmark(
        "overheads.same_address_atomic",
        "a lane that adds a float where all others do",
        source,
        board.sms,
        threads,
        Unit.SECONDS,
        board.sms * threads * per_round,
        {"RED": per_round},
        first=1,
    )


def dram_copy() -> Microbenchmark:
    """A copy of far more than L2 holds; bytes read and written."""
    bytes_per_block = STREAM_THREADS * STREAM_BYTES
    return Microbenchmark(
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


def dram_copy_in_runs(
    run_bytes: int, nbytes: int = STREAM_BLOCKS * STREAM_THREADS * STREAM_BYTES
) -> Microbenchmark:
    """A copy by blocks of 256 threads, 4 KB each, whose rows of so many bytes lie 32 KB apart.

    As in a transpose, neighbouring blocks read neighbouring columns and write to other rows. L2 puts together what
    neighbours write at the same time: where they did, only a fifth of the loss showed.
    """
    pitch, block_bytes = 32768, STREAM_THREADS * 16
    lanes, rows, columns = run_bytes // 16, block_bytes // run_bytes, pitch // run_bytes
    blocks = nbytes // block_bytes
    bands = blocks // columns
    source = f"""
extern "C" __global__ void probe(const char* __restrict__ in, char* __restrict__ out) {{
    size_t row = threadIdx.x / {lanes}, byte = threadIdx.x % {lanes} * 16;
    size_t from = (blockIdx.x / {columns} * {rows} + row) * {pitch} + blockIdx.x % {columns} * {run_bytes};
    size_t to = (blockIdx.x % {bands} * {rows} + row) * {pitch} + blockIdx.x / {bands} * {run_bytes};
    *(float4*)(out + to + byte) = *(const float4*)(in + from + byte);
}}
"""
    return Microbenchmark(
        runs_of(run_bytes),
        f"bytes copied in runs of {run_bytes}",
        source,
        0,
        STREAM_THREADS,
        Unit.PER_SECOND,
        2 * block_bytes,
        {"LDG": 1, "STG": 1},
        grows=Grows.BLOCKS,
        first=blocks // 3,
        most=blocks,
        buffers=(Zeros(nbytes),) * 2,
    )


def runs_of(run_bytes: int) -> str:
    """What the measurement of a copy in runs is called."""
    return f"DRAM copies, runs of {run_bytes} bytes"


SHORT_RUN, LONG_RUN = 64, 4096


def _in_l2(board: Board, constant: str, why: str, accesses: str, loop: dict[str, int]) -> Microbenchmark:
    """Blocks that jump about half of L2, 32 KB at a time, each in an order of its own: one that followed another would
    find what that has just asked for."""
    blocks, chunk = 4 * board.sms, 8 * STREAM_THREADS * 16
    places = board.l2_bytes // 2 // chunk
    source = f"""
extern "C" __global__ void probe(char* data, int rounds) {{
    unsigned sum = 0, at = blockIdx.x * 7u;
    #pragma unroll 1
    for (int i = 0; i < rounds; ++i) {{
        char* p = data + (size_t)(at % {places}) * {chunk} + threadIdx.x * 16;
        {accesses}
        at = at * 1664525u + 1013904223u;
        at ^= at >> 16;
    }}
    if (sum == 12345) *data = 1;
}}
"""
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


STEPS = 32
"""In a loop."""

LOADED_WARPS = 16
"""On each SM, while the latency of DRAM is measured under load: between the 8 and 32 of common kernels."""

LOADED_BYTES = 1 << 30


def l1_latency() -> Microbenchmark:
    """A ring of 64 lines, which L1 holds."""
    return _chase(
        "latency.l1",
        "loads that hit in L1, each at the address that the last one read",
        Ring(8192, 128),
        "",
    )


def l2_latency() -> Microbenchmark:
    """A ring of 2 MB, which L2 holds, past L1. All of L2's slices take part, near ones and far ones."""
    return _chase(
        "latency.l2",
        "loads that hit in L2, each at the address that the last one read",
        Ring(2 << 20, 256),
        ".cg",
    )


def shared_latency() -> Microbenchmark:
    """A ring of 32 words of shared memory."""
    steps = _steps("ld.shared.u32", "r")
    source = f"""
extern "C" __global__ void probe(unsigned* out, int rounds) {{
    __shared__ unsigned ring[32];
    unsigned p = (unsigned)__cvta_generic_to_shared(ring);
    for (int i = 0; i < 32; ++i) ring[i] = p + 4 * ((i + 5) % 32);
    #pragma unroll 1
    for (int i = 0; i < rounds; ++i) {{
        {steps}
    }}
    if (p == 12345) *out = 1;
}}
"""
    why = "loads from shared memory, each at the address that the last one read"
    return Microbenchmark("latency.shared", why, source, 1, 1, Unit.CYCLES, STEPS, {"LDS": STEPS})


def dram_latency(board: Board) -> Microbenchmark:
    """One load in flight for each of 16 warps on every SM: what a kernel waits for that streams without unrolling.

    All lines are read in order, once. The address of a load depends on the one before it, which read a zero.
    """
    unrolled, warps = 4, LOADED_WARPS
    bytes_per_round = unrolled * board.sms * warps * 128
    loads = (
        'asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(v) : "l"(p)); p += step + v;\n        ' * unrolled
    )
    source = f"""
extern "C" __global__ void probe(const unsigned* in, int rounds) {{
    const unsigned* p = in + blockIdx.x * blockDim.x + threadIdx.x;
    unsigned v = 0, step = gridDim.x * blockDim.x;
    #pragma unroll 1
    for (int i = 0; i < rounds; ++i) {{
        {loads}
    }}
    if (v == 12345) *(unsigned*)in = 1;
}}
"""
    return Microbenchmark(
        "latency.dram",
        f"loads of new lines, one in flight for each of {warps} warps on every SM",
        source,
        board.sms,
        32 * warps,
        Unit.CYCLES,
        unrolled,
        {"LDG": unrolled},
        most=LOADED_BYTES // bytes_per_round,
        buffers=(Zeros(LOADED_BYTES),),
    )


def _chase(constant: str, why: str, ring: Ring, cached: str) -> Microbenchmark:
    """Each run goes on where the last one stopped, so that what it left in a cache is no help."""
    source = f"""
extern "C" __global__ void probe(unsigned long long* ring, int rounds) {{
    unsigned long long p = *ring;
    #pragma unroll 1
    for (int i = 0; i < rounds; ++i) {{
        {_steps(f"ld.global{cached}.u64", "l")}
    }}
    *ring = p;
}}
"""
    return Microbenchmark(constant, why, source, 1, 1, Unit.CYCLES, STEPS, {"LDG": STEPS}, buffers=(ring,))


def _steps(load: str, register: str) -> str:
    return f'asm volatile("{load} %0, [%0];" : "+{register}"(p));\n        ' * STEPS
