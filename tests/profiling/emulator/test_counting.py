"""Sectors, requests, bank conflicts and instructions against numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mctskernel.profiling.emulator import AccessCounts, Counts, Geometry, GlobalMemory, Module, count

Compiler = Callable[[str], Module]
T = "int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;"


def counted(
    cuda: Compiler,
    body: str,
    *,
    threads: int = 128,
    grid: int = 8,
    blocks: tuple[int, ...] = (0,),
    **contents: Any,
) -> Counts:
    integers = "int*" if "atomic" in body else "const int* __restrict__"
    head = f'extern "C" __global__ void k(const float* __restrict__ a, float* b, {integers} n)'
    memory = GlobalMemory()
    arguments = [
        memory.add(name, contents.get(name, 1 << 24), virtual=name not in contents)
        for name in ("a", "b", "n")
    ]
    return count(
        cuda(f"{head} {{ {T} {body} }}"),
        "k",
        Geometry((grid, 1, 1), (threads, 1, 1)),
        arguments,
        memory,
        blocks=blocks,
    )


def of(counts: Counts, kind: str, space: str = "global") -> AccessCounts:
    (found,) = [a for a in counts.accesses if (a.kind, a.space) == (kind, space)]
    return found


# body, lanes' bytes, and of one block of 4 warps: requests and sectors of the load
LOADS = {
    "coalesced": ("b[i] = a[i];", 4, 4, 4 * 4),
    "coalesced float2": ("((float2*)b)[i] = ((const float2*)a)[i];", 8, 4, 4 * 8),
    "coalesced float4": ("((float4*)b)[i] = ((const float4*)a)[i];", 16, 4, 4 * 16),
    "stride of 2": ("b[i] = a[2 * i];", 4, 4, 4 * 8),
    "stride of 8, a sector each": ("b[i] = a[8 * i];", 4, 4, 4 * 32),
    "stride of 1024": ("b[i] = a[1024 * i];", 4, 4, 4 * 32),
    "broadcast": ("b[i] = a[blockIdx.x];", 4, 4, 4),
    "shifted by one": ("b[i] = a[i + 1];", 4, 4, 4 * 5),
    "backwards": ("b[i] = a[127 - t];", 4, 4, 4 * 4),
    "half of the lanes": ("if (t % 2) b[i] = a[i];", 4, 4, 4 * 4),
    "one warp in four": ("if (t < 32) b[i] = a[i];", 4, 1, 4),
    "one lane of each warp": ("if (t % 32 == 5) b[i] = a[i];", 4, 4, 4),
    "bytes": ("b[i] = ((const unsigned char*)a)[i];", 1, 4, 4),
}


@pytest.mark.parametrize("name", LOADS)
def test_global_loads(cuda: Compiler, name: str) -> None:
    body, size, requests, sectors = LOADS[name]
    load = of(counted(cuda, body), "load")
    assert (load.bytes_per_lane, load.requests, load.sectors) == (size, requests, sectors)


def test_sectors_that_a_block_touches_again_are_unique_once(cuda: Compiler) -> None:
    load = of(
        counted(
            cuda, "float s = 0; \n#pragma unroll 1\nfor (int j = 0; j < 5; j++) s += a[t + 32 * j]; b[i] = s;"
        ),
        "load",
    )
    assert (load.requests, load.sectors, load.unique_sectors) == (20, 80, (128 + 4 * 32) // 8)


# what a loop of four rounds adds, and over all rounds requests and sectors of its load; one block of four warps
ROUNDS = {
    "the same lanes, half a sector further on": ("s += a[t + 4 * j];", 4 * 4, 4 * (4 + 5 + 4 + 5)),
    "the same lanes, a line further on": ("s += a[t + 32 * j];", 4 * 4, 4 * 4 * 4),
    "other lanes, the same addresses": (
        "if (t >= 16 * j && t < 32 + 16 * j) s += a[t - 16 * j];",
        1 + 2 + 1 + 2,
        4 * 4,
    ),
}


@pytest.mark.parametrize("name", ROUNDS)
def test_global_loads_of_a_loop(cuda: Compiler, name: str) -> None:
    body, requests, sectors = ROUNDS[name]
    loop = f"float s = 0;\n#pragma unroll 1\nfor (int j = 0; j < 4; j++) {body} b[i] = s;"
    load = of(counted(cuda, loop), "load")
    assert (load.requests, load.sectors) == (requests, sectors)


# statement between barriers, and shared wavefronts and the ideal of its load; one block of one warp
SHARED = {
    "one bank each": ("s[t]", 1, 1),
    "one word for all": ("s[n0]", 1, 1),
    "two words to a bank": ("s[2 * t]", 2, 1),
    "stride of 32": ("s[32 * t]", 32, 1),
    "padded by one": ("s[33 * t]", 1, 1),
    "stride of 8": ("s[8 * t]", 8, 1),
    "pairs share a word": ("s[t / 2 * 32]", 16, 1),
}


@pytest.mark.parametrize("name", SHARED)
def test_shared_loads(cuda: Compiler, name: str) -> None:
    text, fronts, ideal = SHARED[name]
    body = "__shared__ float s[1100]; s[t] = a[i]; s[t + 1000] = 0; __syncthreads(); int n0 = blockIdx.x;"
    body += f"b[i] = {text};"
    load = of(counted(cuda, body, threads=32), "load", "shared")
    assert (load.requests, load.wavefronts, load.ideal_wavefronts) == (1, fronts, ideal)


TRANSPOSE = """__shared__ float s[32][WIDTH]; int x = t % 32, y = t / 32;
for (int j = 0; j < 32; j += 4) s[y + j][x] = a[(y + j) * 1024 + x]; __syncthreads();
for (int j = 0; j < 32; j += 4) b[(y + j) * 1024 + x] = s[x][y + j];"""


@pytest.mark.parametrize(("width", "conflict"), [(32, 32), (33, 1), (34, 2), (36, 4)])
def test_transposes(cuda: Compiler, width: int, conflict: int) -> None:
    """32 requests of a tile each way; a column of the tile meets one bank in gcd(width, 32) words."""
    counts = counted(cuda, TRANSPOSE.replace("WIDTH", str(width)))
    loads = [a for a in counts.accesses if a.kind == "load"]
    shared = [a for a in loads if a.space == "shared"]
    stores = [a for a in counts.accesses if a.kind == "store" and a.space == "shared"]
    assert sum(a.requests for a in shared) == 32
    assert sum(a.wavefronts for a in shared) == 32 * conflict
    assert sum(a.wavefronts for a in stores) == sum(a.ideal_wavefronts for a in stores) == 32
    assert sum(a.sectors for a in loads if a.space == "global") == 32 * 4


def test_naive_transpose_scatters_its_stores(cuda: Compiler) -> None:
    store = of(counted(cuda, "int x = t % 32, y = t / 32; b[x * 1024 + y] = a[y * 1024 + x];"), "store")
    assert (store.requests, store.sectors) == (4, 4 * 32)


def test_atomics_that_meet(cuda: Compiler) -> None:
    """All lanes of a warp on one address, and on four."""
    one = of(counted(cuda, "atomicAdd(n, t);"), "atomic")
    assert (one.requests, one.same_address_lanes) == (4, 4 * 32)
    four = of(counted(cuda, "atomicAdd(n + t % 4, t);"), "atomic")
    assert (four.requests, four.same_address_lanes) == (4, 4 * 8)


def test_loop_trips_and_barriers(cuda: Compiler) -> None:
    body = "float s = 0; \n#pragma unroll 1\nfor (int j = 0; j < 10; j++) { s += a[i]; __syncthreads(); } b[i] = s;"
    counts = counted(cuda, body)
    assert counts.barriers == 10
    assert counts.warp_instructions["barrier"] == 40
    assert counts.warp_instructions["load.global"] == of(counts, "load").requests
    assert max(b.warp_executions for b in counts.basic_blocks) == 40


def test_lanes_that_a_branch_leaves_out(cuda: Compiler) -> None:
    counts = counted(cuda, "if (t % 4 == 0) { b[i] = a[i]; atomicAdd(n, 1); }")
    assert of(counts, "load").lanes == 32
    assert 0 < counts.active_lanes < 32


def test_a_sample_counts_what_the_same_block_counts_among_all(cuda: Compiler) -> None:
    """Blocks differ: each one's trip count is its number."""
    body = (
        "float s = 0; \n#pragma unroll 1\n"
        "for (int j = 0; j <= blockIdx.x; j++) s += a[128 * j + t * blockIdx.x]; b[i] = s;"
    )

    def totals(blocks: tuple[int, ...]) -> np.ndarray:
        counts = counted(cuda, body, blocks=blocks)
        numbers = [[a.requests, a.lanes, a.sectors, a.unique_sectors] for a in counts.accesses]
        instructions = [[b.warp_executions, b.lane_executions, 0, 0] for b in counts.basic_blocks]
        return np.array(numbers + instructions)

    apart = sum(totals((b,)) for b in range(8))
    np.testing.assert_array_equal(totals(tuple(range(8))), apart)
    assert of(counted(cuda, body, blocks=(3,)), "load").requests == 4 * 4


def test_a_trace_holds_the_sectors_in_order(cuda: Compiler) -> None:
    counts = counted(cuda, "b[i] = a[i];", threads=32, blocks=(2,))
    (trace,) = counts.traces
    kinds = [counts.accesses[n].kind for n in trace.accesses]
    assert kinds == ["load"] * 4 + ["store"] * 4
    assert np.diff(trace.sectors[:4]).tolist() == [1, 1, 1]
    assert trace.sectors[0] % (1 << 15) == 2 * 4


def test_contents_that_decide_addresses_are_asked_for(cuda: Compiler) -> None:
    """An index from memory: without the index buffer its name comes back, with it the scattered sectors."""
    body = "b[i] = a[n[i]];"
    assert counted(cuda, body).needs == ("n",)
    index = np.arange(0, 8 * 1024, 8, dtype=np.int32)
    counts = counted(cuda, body, n=index)
    assert counts.needs == ()
    assert sorted(a.sectors for a in counts.accesses if a.kind == "load") == [16, 128]


def test_counting_agrees_with_what_was_stored_in_shared_memory(cuda: Compiler) -> None:
    """Addresses that went through shared memory, a shuffle and an atomic."""
    body = (
        "__shared__ int s[128]; s[t] = t * 8; __syncthreads(); int j = __shfl_xor_sync(~0u, s[127 - t], 1);"
        "b[i] = a[j];"
    )
    (load,) = [a for a in counted(cuda, body).accesses if a.kind == "load" and a.space == "global"]
    assert load.sectors == 128


@pytest.mark.parametrize(
    "between",
    [
        "__syncwarp();",
        "__threadfence();",
        "__threadfence_block();",
        'asm volatile("cp.async.commit_group;"); asm volatile("cp.async.wait_group 0;");',
        'asm volatile("cp.async.wait_all;");',
    ],
)
def test_what_orders_memory_moves_nothing(cuda: Compiler, between: str) -> None:
    counts = counted(cuda, f"__shared__ float s[128]; s[t] = a[i]; {between} b[i] = s[t ^ 1];")
    assert not counts.findings
    assert (of(counts, "load").requests, of(counts, "store").requests) == (4, 4)
