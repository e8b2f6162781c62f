"""Sectors, requests, bank conflicts and instructions against numbers worked out by hand."""

from typing import Any

import numpy as np
import pytest

from mctskernel.profiling.emulator import (
    AccessCounts,
    Counts,
    Geometry,
    GlobalMemory,
    count,
    counting,
    is_sampled,
)
from tests.profiling.emulator.launching import Compiler

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
    geometry = Geometry((grid, 1, 1), (threads, 1, 1))
    return count(cuda(f"{head} {{ {T} {body} }}"), "k", geometry, arguments, memory, blocks=blocks)


def of(counts: Counts, kind: str, space: str = "global") -> AccessCounts:
    (found,) = [a for a in counts.accesses if (a.kind, a.space) == (kind, space)]
    return found


# body, lanes' bytes, and of one block of 4 warps: requests and sectors of the load
LOADS = {
    "coalesced": ("b[i] = a[i];", 4, 4, 4 * 4),
    "coalesced float4": ("((float4*)b)[i] = ((const float4*)a)[i];", 16, 4, 4 * 16),
    "stride of 2": ("b[i] = a[2 * i];", 4, 4, 4 * 8),
    "stride of 8, a sector each": ("b[i] = a[8 * i];", 4, 4, 4 * 32),
    "broadcast": ("b[i] = a[blockIdx.x];", 4, 4, 4),
    "half of the lanes": ("if (t % 2) b[i] = a[i];", 4, 4, 4 * 4),
    "one lane of each warp": ("if (t % 32 == 5) b[i] = a[i];", 4, 4, 4),
    "bytes": ("b[i] = ((const unsigned char*)a)[i];", 1, 4, 4),
}


@pytest.mark.parametrize("name", LOADS)
def test_global_loads(cuda: Compiler, name: str) -> None:
    body, size, requests, sectors = LOADS[name]
    load = of(counted(cuda, body), "load")
    assert (load.bytes_per_lane, load.requests, load.sectors) == (size, requests, sectors)


# statement between barriers, and shared wavefronts and the ideal of its load; one block of one warp
SHARED = {
    "one bank each": ("s[t]", 1, 1),
    "one word for all": ("s[n0]", 1, 1),
    "stride of 32": ("s[32 * t]", 32, 1),
    "padded by one": ("s[33 * t]", 1, 1),
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


def test_atomics_that_meet(cuda: Compiler) -> None:
    """All lanes of a warp on one address, and on four."""
    one = of(counted(cuda, "atomicAdd(n, t);"), "atomic")
    assert (one.requests, one.same_address_lanes) == (4, 4 * 32)
    four = of(counted(cuda, "atomicAdd(n + t % 4, t);"), "atomic")
    assert (four.requests, four.same_address_lanes) == (4, 4 * 8)


def test_a_sample_counts_what_the_same_block_counts_among_all(cuda: Compiler) -> None:
    """Blocks differ: each one's trip count is its number."""
    body = (
        "float s = 0; \n#pragma unroll 1\n"
        "for (int j = 0; j <= blockIdx.x; j++) s += a[128 * j + t * blockIdx.x]; b[i] = s;"
    )

    def totals(blocks: tuple[int, ...]) -> np.ndarray:
        counts = counted(cuda, body, blocks=blocks)
        numbers = [[a.requests, a.lanes, a.sectors, a.wavefronts] for a in counts.accesses]
        instructions = [[b.warp_executions, b.lane_executions, 0, 0] for b in counts.basic_blocks]
        return np.array(numbers + instructions)

    apart = sum(totals((b,)) for b in range(8))
    np.testing.assert_array_equal(totals(tuple(range(8))), apart)
    assert of(counted(cuda, body, blocks=(3,)), "load").requests == 4 * 4


def test_a_long_trace_keeps_every_access_to_a_sample_of_the_sectors(
    cuda: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stores come after all the loads, and are kept as often as they."""
    monkeypatch.setattr(counting, "TRACE_SECTORS", 1 << 9)
    loop = "#pragma unroll 1\nfor (int j = 0; j < 64; j++)"
    body = f"float s = 0;\n{loop} s += a[t + 128 * j];\n{loop} b[t + 128 * j] = s;"
    (trace,) = counted(cuda, body, blocks=(2,)).traces
    loads, stores = (int(np.sum(trace.accesses == n)) * trace.rate for n in np.unique(trace.accesses))
    assert trace.rate in (4, 8)
    assert len(trace.sectors) <= 1 << 9
    assert (loads, stores) == (pytest.approx(1024, rel=0.25), pytest.approx(1024, rel=0.25))
    assert is_sampled(trace.sectors, trace.rate).all()


def test_contents_that_decide_addresses_are_asked_for(cuda: Compiler) -> None:
    """An index from memory: without the index buffer its name comes back, with it the scattered sectors."""
    body = "b[i] = a[n[i]];"
    assert counted(cuda, body).needs == ("n",)
    index = np.arange(0, 8 * 1024, 8, dtype=np.int32)
    counts = counted(cuda, body, n=index)
    assert counts.needs == ()
    assert sorted(a.sectors for a in counts.accesses if a.kind == "load") == [16, 128]


@pytest.mark.parametrize(
    "between",
    [
        "__syncwarp();",
        "__threadfence_block();",
        'asm volatile("cp.async.commit_group;"); asm volatile("cp.async.wait_group 0;");',
        'asm volatile("cp.async.wait_all;");',
    ],
)
def test_what_orders_memory_moves_nothing(cuda: Compiler, between: str) -> None:
    counts = counted(cuda, f"__shared__ float s[128]; s[t] = a[i]; {between} b[i] = s[t ^ 1];")
    assert not counts.findings
    assert (of(counts, "load").requests, of(counts, "store").requests) == (4, 4)
