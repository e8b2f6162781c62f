"""Microbenchmarks of what a load waits for: one thread that goes from address to address, each read from the last."""

from __future__ import annotations

from mctskernel.profiling.calibration.microbenchmark import Board, Microbenchmark, Ring, Unit, Zeros

STEPS = 32
"""In a loop."""

LOADED_WARPS = 16
"""On each SM, while the latency of DRAM is measured under load: between the 8 and 32 of common kernels."""

LOADED_BYTES = 1 << 30


def l1() -> Microbenchmark:
    """A ring of 64 lines, which L1 holds."""
    return _chase(
        "latency.l1",
        "loads that hit in L1, each at the address that the last one read",
        Ring(8192, 128),
        "",
    )


def l2() -> Microbenchmark:
    """A ring of 2 MB, which L2 holds, past L1. All of L2's slices take part, near ones and far ones."""
    return _chase(
        "latency.l2",
        "loads that hit in L2, each at the address that the last one read",
        Ring(2 << 20, 256),
        ".cg",
    )


def dram_idle(board: Board) -> Microbenchmark:
    """A ring that L2 can't hold, and which is so long that no line is read twice."""
    ring = Ring(board.beyond_l2_bytes, 256)
    why = "loads that miss everywhere, each at the address that the last one read, on an idle GPU"
    return _chase("DRAM latency, idle", why, ring, ".cg")


def shared() -> Microbenchmark:
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


def dram(board: Board) -> Microbenchmark:
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
