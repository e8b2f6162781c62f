"""Blocks that draw their work from a counter: one that runs alone leaves the others theirs."""

from collections.abc import Callable

import numpy as np
import pytest

from mctskernel.profiling.emulator import Counts, Geometry, GlobalMemory, Module, count, execute

Compiler = Callable[[str], Module]
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
DRAWS = {
    "an addition": "atomicAdd(next, 1u)",
    "an increment": "atomicInc(next, 1000u)",
}


def memory_of(next_: np.ndarray) -> tuple[GlobalMemory, list[int]]:
    memory = GlobalMemory()
    return memory, [memory.add("out", 4 * THREADS * PIECES), memory.add("next", next_)]


def counted(module: Module, block: int) -> Counts:
    memory, arguments = memory_of(np.zeros(1 + GRID, np.uint32))
    geometry = Geometry((GRID, 1, 1), (THREADS, 1, 1))
    return count(module, "k", geometry, arguments, memory, blocks=(block,))


def stores(counts: Counts) -> int:
    return sum(a.requests for a in counts.accesses if (a.kind, a.space) == ("store", "global"))


@pytest.mark.parametrize("draw", DRAWS)
def test_blocks_share_what_a_counter_hands_out(cuda: Compiler, draw: str) -> None:
    module = cuda(QUEUE.replace("DRAW", DRAWS[draw]))
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
        memory = GlobalMemory()
        arguments = [memory.add("parts", 4 * GRID), memory.add("count", np.zeros(1, np.uint32))]
        arguments.append(memory.add("out", 4))
        module = cuda(source.replace("ACQUIRE", semantics))
        run = execute(module, "k", Geometry((GRID, 1, 1), (1, 1, 1)), arguments, memory)
        found[semantics] = [finding.kind for finding in run.findings]
    assert found == {"acq_rel": [], "relaxed": ["race"]}
