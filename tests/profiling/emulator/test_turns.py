"""Blocks that draw their work from a counter: one that runs alone leaves the others theirs."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
import pytest

from mctskernel.profiling.emulator import Counts, Geometry, GlobalMemory, Module, count, execute
from mctskernel.profiling.emulator.trail import Trail

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
    "the block's own counter": "atomicAdd(next + 1 + blockIdx.x, 1u)",
}


def memory_of(next_: np.ndarray) -> tuple[GlobalMemory, list[int]]:
    memory = GlobalMemory()
    return memory, [memory.add("out", 4 * THREADS * PIECES), memory.add("next", next_)]


def counted(module: Module, block: int, counters: Collection[tuple[str, int]] | None) -> Counts:
    memory, arguments = memory_of(np.zeros(1 + GRID, np.uint32))
    geometry = Geometry((GRID, 1, 1), (THREADS, 1, 1))
    return count(module, "k", geometry, arguments, memory, blocks=(block,), counters=counters)


def stores(counts: Counts) -> int:
    return sum(a.requests for a in counts.accesses if (a.kind, a.space) == ("store", "global"))


@pytest.mark.parametrize("draw", ["an addition", "an increment"])
def test_blocks_share_what_a_counter_hands_out(cuda: Compiler, draw: str) -> None:
    module = cuda(QUEUE.replace("DRAW", DRAWS[draw]))
    first = counted(module, 5, None)
    assert first.counters == {("next", 0)}
    each = [stores(counted(module, block, first.counters)) for block in range(GRID)]
    assert sum(each) == PIECES
    assert max(each) - min(each) <= 1


def test_a_block_alone_does_everything_where_nothing_is_known_to_be_shared(cuda: Compiler) -> None:
    module = cuda(QUEUE.replace("DRAW", DRAWS["the block's own counter"]))
    places = {counted(module, block, None).counters for block in range(GRID)}
    assert len(places) == GRID
    assert stores(counted(module, 3, ())) == PIECES


def test_blocks_write_their_share_and_leave_the_counter_as_it_was(cuda: Compiler) -> None:
    module = cuda(QUEUE.replace("DRAW", DRAWS["an addition"]))
    memory, arguments = memory_of(np.zeros(1 + GRID, np.uint32))
    geometry = Geometry((GRID, 1, 1), (THREADS, 1, 1))
    for block in (4, 1):
        found = execute(module, "k", geometry, arguments, memory, blocks=(block,), counters={("next", 0)})
        assert found.findings == ()
    pieces = np.flatnonzero(memory.written("out").reshape(PIECES, -1).all(axis=1))
    assert pieces.tolist() == sorted([*range(1, PIECES, GRID), *range(4, PIECES, GRID)])
    assert not memory.array("next", np.uint32).any()


def test_a_trail_tells_what_other_blocks_may_have_left(cuda: Compiler) -> None:
    module = cuda(
        'extern "C" __global__ void k(float* out, unsigned* bins) '
        "{ out[blockIdx.x] = 1.0f; atomicAdd(bins + blockIdx.x, 1u); }"
    )
    memory = GlobalMemory()
    arguments = [
        memory.add("out", np.zeros(GRID, np.float32)),
        memory.add("bins", np.zeros(GRID, np.uint32)),
    ]
    trail = Trail()
    execute(module, "k", Geometry((GRID, 1, 1), (1, 1, 1)), arguments, memory, blocks=(2,), trail=trail)
    assert trail.buffers == {"out", "bins"}
    trail.forget_the_rest(memory, before=())
    assert np.flatnonzero(memory.written("out")).tolist() == [8, 9, 10, 11]
    assert not memory.written("bins").any()


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
