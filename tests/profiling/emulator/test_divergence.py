"""Threads of a warp that branch, loop, leave and meet again compute what each of them computes alone."""

import numpy as np
import pytest

from mctskernel.profiling.emulator import Module
from tests.profiling.emulator.launching import Compiler, launched

THREADS, BLOCKS = 40, 3  # a partly filled warp in every block

BODIES = {
    "break and continue": """
        for (unsigned n = v[0]; n != 0; --n) {
            if (v[1] == n) continue;
            if (v[2] > 20 && v[3] < 9) break;
            v[2] += v[3];
            atomicAdd(&counts[v[2] & 7], 1);
        }""",
    "return from nested loops": """
        for (unsigned n = 0; n < v[0]; ++n) {
            for (unsigned m = v[1]; m > 0; m -= 1) {
                if (v[2] * n == m + v[3]) { out[4 * i] = n; out[4 * i + 1] = m; return; }
                if ((v[2] ^ m) == 5) { v[3] += m; break; }
            }
            atomicAdd(&counts[n & 7], v[3]);
        }""",
    "switch in a loop": """
        for (unsigned n = v[0]; n < 12; ++n) {
            switch ((v[1] + n * v[3]) % 7) {
                case 0: v[2] += 3; break;
                case 1: v[2] ^= v[0]; v[1] += 1;  // falls through
                case 2: v[0] += 2; break;
                case 3: if (v[2] & 1) continue; v[2] *= 5; break;
                case 4: n += 1; break;
                case 5: v[3] = min(v[3], v[2]); break;
                default: atomicAdd(&counts[v[2] & 7], 1);
            }
        }""",
    "branches around a barrier": """
        if (v[0] < 6 && (v[1] > 3 || v[2] == 5)) v[0] += v[1]; else if (v[3] & 1) v[1] = v[2];
        __syncthreads();
        if (v[0] != v[1]) { for (unsigned n = v[0]; n > v[3]; n /= 2) v[2] += n; }
        __syncthreads();
        v[3] = v[2] > 7 ? v[1] - v[2] : v[0] * v[3];""",
    "threads that have left": """
        if (v[0] > 8) return;
        while (v[1] != 0) {
            v[2] = v[2] * 3 + v[1];
            if (v[2] % 5 == v[3] % 5) goto out;
            v[1] -= 1;
        }
        v[3] += 1;
    out:
        atomicAdd(&counts[v[3] & 7], v[2]);""",
    "labels of inline PTX": """
        asm("{.reg .pred p; up: add.u32 %0, %0, 2; setp.lt.u32 p, %0, %1; @p bra up;}" : "+r"(v[0]) : "r"(v[2]));
        asm("{.reg .pred p; up: add.u32 %0, %0, 3; setp.lt.u32 p, %0, %1; @p bra up;}" : "+r"(v[1]) : "r"(v[3]));""",
    "calls": """
        v[0] = collatz(v[0] + 1);
        if (v[1] & 2) v[1] = collatz(v[2]) + collatz(v[3]);""",
}

KERNEL = """
__device__ __noinline__ unsigned collatz(unsigned n) {
    unsigned steps = 0;
    while (n > 1) { n = n % 2 ? 3 * n + 1 : n / 2; ++steps; }
    return steps;
}
extern "C" __global__ void k(const unsigned* given, unsigned* out, unsigned* counts) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned v[4];
    for (unsigned n = 0; n < 4; ++n) { v[n] = given[4 * i + n]; out[4 * i + n] = 0; }
    BODY
    for (unsigned n = 0; n < 4; ++n) out[4 * i + n] = v[n];
}
"""


@pytest.mark.parametrize("body", BODIES.values(), ids=list(BODIES))
@pytest.mark.parametrize("shared", [None, 0, 3])
def test_threads_together_compute_what_each_computes_alone(
    cuda: Compiler, body: str, shared: int | None
) -> None:
    data = np.random.default_rng(1).integers(0, 12, (THREADS * BLOCKS, 4)).astype(np.uint32)
    if shared is not None:
        data[:, shared] = 5  # a value that all lanes share, though nobody knows
    module = cuda(KERNEL.replace("BODY", body))
    together, alone = (results(module, data, threads) for threads in (THREADS, 1))
    assert together == alone
    assert len({tuple(row) for row in together[0]}) > 20


def results(module: Module, data: np.ndarray, threads: int) -> tuple[list[list[int]], list[int]]:
    """What the threads leave, in blocks of so many, and what they count together."""
    buffers = {"a": data, "out": data.nbytes, "counts": np.zeros(8, np.uint32)}
    done, memory = launched(module, buffers, len(data) // threads, threads)
    assert [finding.message for finding in done.findings] == []
    out, counts = memory.array("out", np.uint32), memory.array("counts", np.uint32)
    return out.reshape(-1, 4).tolist(), counts.tolist()
