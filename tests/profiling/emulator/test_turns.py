"""Blocks that draw their work from a counter: one that runs alone leaves the others theirs."""

import numpy as np
import pytest

from mctskernel.profiling.emulator import Counts, Geometry, GlobalMemory, Module, count
from tests.profiling.emulator.launching import Compiler, launched

GRID, PIECES, THREADS = 8, 100, 32
QUEUE = """
extern "C" __global__ void k(float* out, unsigned* next) {
    __shared__ unsigned drawn;
    for (;;) {
        if (threadIdx.x == 0) drawn = DRAW;
        __syncthreads();
        unsigned piece = drawn;
        if (piece >= 100) return;
        out[piece * 32 + threadIdx.x] = piece;
        __syncthreads();
    }
}
"""


def counted(module: Module, block: int) -> Counts:
    memory = GlobalMemory()
    arguments = [memory.add("out", 4 * THREADS * PIECES), memory.add("next", np.zeros(1 + GRID, np.uint32))]
    geometry = Geometry((GRID, 1, 1), (THREADS, 1, 1))
    return count(module, "k", geometry, arguments, memory, blocks=(block,))


def stores(counts: Counts) -> int:
    return sum(a.requests for a in counts.accesses if (a.kind, a.space) == ("store", "global"))


@pytest.mark.parametrize("draw", ["atomicAdd(next, 1u)", "atomicInc(next, 1000u)"])
def test_blocks_share_what_a_counter_hands_out(cuda: Compiler, draw: str) -> None:
    module = cuda(QUEUE.replace("DRAW", draw))
    assert {stores(counted(module, block)) for block in range(GRID)} == {-(-PIECES // GRID)}


def test_an_atomic_that_releases_needs_no_fence(cuda: Compiler) -> None:
    draw = (
        'asm volatile("atom.ACQUIRE.gpu.global.add.u32 %0, [%1], 1;" : "=r"(drawn) : "l"(count) : "memory");'
    )
    source = (
        'extern "C" __global__ void k(float* parts, unsigned* count, float* out) { '
        f"unsigned drawn; parts[blockIdx.x] = 1.0f; {draw} "
        "if (drawn != gridDim.x - 1) return; float sum = 0.0f; "
        "for (int i = 0; i < gridDim.x; ++i) sum += ((volatile float*)parts)[i]; *out = sum; }"
    )
    found = {}
    for semantics in ("acq_rel", "relaxed"):
        buffers = {"parts": 4 * GRID, "count": np.zeros(1, np.uint32), "out": 4}
        done, _ = launched(cuda(source.replace("ACQUIRE", semantics)), buffers, GRID, 1)
        found[semantics] = [finding.kind for finding in done.findings]
    assert found == {"acq_rel": [], "relaxed": ["race"]}
