"""Microbenchmarks of memory: wavefronts of the LSU, L2, DRAM, atomics.

Kernels that move data keep so much of it in flight that latency hides. What they read is zeros, and a result
depends on all of it, so that the compiler can leave nothing out.
"""

from __future__ import annotations

from mctskernel.profiling.calibration.microbenchmark import Board, Grows, Microbenchmark, Unit, Zeros
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


def shared_loads(board: Board) -> Microbenchmark:
    """Loads of 4 bytes a lane without conflicts are one wavefront each: the LSU takes no more of them than this."""
    return _lsu(board, "throughput.lsu_instructions", "shared", lane_bytes=4, width=4, wavefronts=1)


def shared_conflicts(board: Board) -> Microbenchmark:
    """Loads whose lanes meet in four banks, eight in each, are eight wavefronts."""
    return _lsu(board, "throughput.wavefronts", "shared", lane_bytes=32, width=4, wavefronts=8)


def shared_8_bytes(board: Board) -> Microbenchmark:
    """A warp's 8-byte loads are two wavefronts."""
    return _lsu(board, "shared wavefronts, 8 bytes", "shared", lane_bytes=8, width=8, wavefronts=2)


def shared_16_bytes(board: Board) -> Microbenchmark:
    """A warp's 16-byte loads are four wavefronts."""
    return _lsu(board, "shared wavefronts, 16 bytes", "shared", lane_bytes=16, width=16, wavefronts=4)


def global_4_bytes(board: Board) -> Microbenchmark:
    """A warp's 4-byte loads that hit in L1 are one wavefront."""
    return _lsu(board, "global wavefronts, 4 bytes", "global", lane_bytes=4, width=4, wavefronts=1)


def global_8_bytes(board: Board) -> Microbenchmark:
    """A warp's 8-byte loads that hit in L1 are two wavefronts."""
    return _lsu(board, "global wavefronts, 8 bytes", "global", lane_bytes=8, width=8, wavefronts=2)


def global_16_bytes(board: Board) -> Microbenchmark:
    """A warp's 16-byte loads that hit in L1 are four wavefronts."""
    return _lsu(board, "global wavefronts, 16 bytes", "global", lane_bytes=16, width=16, wavefronts=4)


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
    return _stream("memory.dram_bytes_per_second", "bytes copied, read and written", COPY_SOURCE, 2, 2)


def dram_read() -> Microbenchmark:
    """A read of far more than L2 holds."""
    source = """
extern "C" __global__ void probe(const float4* __restrict__ in) {
    size_t i = blockIdx.x * (size_t)(4 * blockDim.x) + threadIdx.x;
    float4 values[4];
    #pragma unroll
    for (int k = 0; k < 4; ++k) values[k] = in[i + k * blockDim.x];
    float sum = 0.0f;
    #pragma unroll
    for (int k = 0; k < 4; ++k) sum += values[k].x + values[k].y + values[k].z + values[k].w;
    if (sum == 12345.0f) ((float*)in)[threadIdx.x] = sum;
}
"""
    return _stream("DRAM reads", "bytes read", source, 1, 1)


def dram_write() -> Microbenchmark:
    """Far more written than L2 holds."""
    source = """
extern "C" __global__ void probe(float4* out) {
    size_t i = blockIdx.x * (size_t)(4 * blockDim.x) + threadIdx.x;
    #pragma unroll
    for (int k = 0; k < 4; ++k) out[i + k * blockDim.x] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}
"""
    return _stream("DRAM writes", "bytes written", source, 1, 1)


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


def _stream(constant: str, why: str, source: str, buffers: int, moved: int) -> Microbenchmark:
    bytes_per_block = STREAM_THREADS * STREAM_BYTES
    accesses = {"LDG": 4, "STG": 4} if moved == 2 else ({"STG": 4} if "writes" in constant else {"LDG": 4})
    return Microbenchmark(
        constant,
        why,
        source,
        0,
        STREAM_THREADS,
        Unit.PER_SECOND,
        moved * bytes_per_block,
        accesses,
        grows=Grows.BLOCKS,
        first=STREAM_BLOCKS // 3,
        most=STREAM_BLOCKS,
        buffers=(Zeros(STREAM_BLOCKS * bytes_per_block),) * buffers,
    )


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


_VECTORS = {4: ("u32", 1), 8: ("v2.u32", 2), 16: ("v4.u32", 4)}


def _lsu(
    board: Board, constant: str, space: str, *, lane_bytes: int, width: int, wavefronts: int
) -> Microbenchmark:
    """Loads of `width` bytes whose lanes lie `lane_bytes` apart, at another place in every round: none can be saved."""
    kind, registers = _VECTORS[width]
    span = 32 * lane_bytes
    shared = space == "shared"
    names = ", ".join(f"%{index}" for index in range(registers))
    results = f"{{{names}}}" if registers > 1 else names
    bindings = ", ".join(f'"=r"(v{index})' for index in range(registers))
    declared = ", ".join(f"v{index}" for index in range(registers))
    folded = " ^ ".join(f"v{index}" for index in range(registers))
    loads = "\n        ".join(
        f'asm volatile("ld.{space}.{kind} {results}, [%{registers} + {k * span}];" : {bindings} : '
        f'"{"r" if shared else "l"}"(p)); sum ^= {folded};'
        for k in range(LOADS)
    )
    size = (LOADS + 3) * span
    tile = f"__shared__ __align__(16) unsigned char tile[{size}];" if shared else ""
    filled = (
        f"for (int i = threadIdx.x; i < {size}; i += blockDim.x) tile[i] = 0;\n    __syncthreads();"
        if shared
        else ""
    )
    base = "(unsigned)__cvta_generic_to_shared(tile)" if shared else "in"
    pointer = "unsigned" if shared else "const char*"
    source = f"""
extern "C" __global__ void probe(char* in, int rounds) {{
    {tile}
    {filled}
    {pointer} base = {base} + threadIdx.x % 32 * {lane_bytes};
    unsigned sum = 0, {declared};
    #pragma unroll 1
    for (int i = 0; i < rounds; ++i) {{
        {pointer} p = base + (i & 3) * {span};
        {loads}
    }}
    if (sum == 12345) *in = 1;
}}
"""
    blocks = BLOCKS_PER_SM * board.sms
    return Microbenchmark(
        constant,
        f"wavefronts of {space} loads of {width} bytes a lane, {wavefronts} for each",
        source,
        blocks,
        THREADS,
        Unit.PER_CYCLE_AND_SM,
        blocks * (THREADS // 32) * LOADS * wavefronts,
        {"LDS" if shared else "LDG": LOADS},
        buffers=(Zeros(max(size, 4096)),),
    )
