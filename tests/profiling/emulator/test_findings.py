"""Bugs that no file of `tests/races` has are found at their source line, and messages say where."""

import numpy as np
import pytest

from mctskernel.profiling.emulator import Finding, Limits
from tests.profiling.emulator.launching import Compiler, launched

N = 1024


def found(cuda: Compiler, body: str, blocks: int = 2) -> tuple[Finding, ...]:
    source = f'\nextern "C" __global__ void k(const float* a, float* b, unsigned* u) {{\n{body}\n}}'
    buffers = {"a": np.arange(N, dtype=np.float32), "b": 4 * N, "u": np.zeros(N, np.uint32)}
    done, _ = launched(cuda(source), buffers, blocks, 128, limits=Limits(block_executions=20_000))
    return done.findings


T = "int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;\n"

# name, kind, body; the faulty line ends with "// bug"
PLANTED = {
    "two threads store to one place": (
        "race",
        T + "__shared__ float s[128]; s[t / 2] = a[i]; // bug\n__syncthreads(); b[i] = s[t / 2];",
    ),
    "overrun far into the next buffer": ("out_of_bounds", T + "b[i] = a[i + 100000000]; // bug"),
    "local array overrun": (
        "out_of_bounds",
        T + "float r[8]; for (int j = 0; j < 8; j++) r[j] = a[t + j]; int n = (int)u[0] + t;\n"
        "float v = r[n & 15]; // bug\nb[i] = v + r[(n + 1) & 7];",
    ),
    "local array read before it is written": (
        "uninitialised_read",
        T
        + "float r[8]; int n = (int)u[0] + t; r[n & 3] = a[i];\nfloat v = r[(n + 1) & 3]; // bug\nb[i] = v;",
    ),
    "wmma beyond its tile": (
        "out_of_bounds",
        T + "if (t >= 32) return; __shared__ __align__(32) float s[128];\n"
        'asm volatile("{ .reg .f32 f<8>; wmma.load.c.sync.aligned.row.m16n16k16.shared.f32 '
        '{f0,f1,f2,f3,f4,f5,f6,f7}, [%0], 16; }" :: "r"((unsigned)__cvta_generic_to_shared(s))); // bug\nb[i] = 1;',
    ),
    "endless loop": (
        "limit",
        T + "unsigned n = u[i];\nwhile (n != 1) n += 2 * *(volatile unsigned*)(u + i); // bug\nb[i] = n;",
    ),
    "trap": ("trap", T + "if (t == 3)\n__trap(); // bug\nb[i] = 0;"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_bug_is_found_at_its_line(cuda: Compiler, name: str) -> None:
    kind, body = PLANTED[name]
    line = next(n for n, text in enumerate(body.splitlines(), 3) if text.endswith("// bug"))
    findings = found(cuda, body)
    assert (kind, line) in [(f.kind, f.line) for f in findings], [f.message for f in findings]


@pytest.mark.parametrize("blocks", [2, 200])
def test_blocks_may_store_one_constant_and_no_two(cuda: Compiler, blocks: int) -> None:
    assert found(cuda, "u[0] = 1;", blocks) == ()
    other = found(cuda, "if (blockIdx.x == 1) u[0] = 2; else\nu[0] = 1;", blocks)
    assert {f.kind for f in other} == {"race"}


@pytest.mark.parametrize("head_start", [0, 1])
def test_blocks_that_wait_for_each_other_end_whichever_is_ahead(cuda: Compiler, head_start: int) -> None:
    source = """extern "C" __global__ void k(unsigned* u, float* b) {
if (threadIdx.x == 0) { __threadfence(); atomicAdd(u, 1); while (atomicAdd(u, 0) < gridDim.x) {} }
__syncthreads(); b[blockIdx.x * 64 + threadIdx.x] = 1; }"""
    buffers = {"u": np.zeros(1, np.uint32), "b": 4 * 256}
    done, memory = launched(cuda(source), buffers, 4, 64, numbers=range(4)[::-1], head_start=head_start)
    assert done.findings == ()
    assert memory.written("b").all()


def test_a_head_start_shows_who_relies_on_the_order_of_blocks(cuda: Compiler) -> None:
    source = """extern "C" __global__ void k(unsigned* u, unsigned* b) {
atomicAdd(u, 1); if (blockIdx.x == gridDim.x - 1) b[0] = atomicAdd(u, 0); }"""
    counted = []
    for numbers, head_start in ((range(4), 0), (range(4)[::-1], 1)):
        buffers = {"u": np.zeros(1, np.uint32), "b": 4}
        done, memory = launched(cuda(source), buffers, 4, 1, numbers=numbers, head_start=head_start)
        assert done.findings == ()
        counted.append(int(memory.array("b", "u4")[0]))
    assert counted == [4, 1]


def test_a_message_says_what_where_and_how_far(cuda: Compiler) -> None:
    source = 'extern "C" __global__ void k(float* b) {\nb[threadIdx.x] = 1; }'
    done, _ = launched(cuda(source), {"b": 100})
    (finding,) = done.findings
    assert (finding.kind, finding.line) == ("out_of_bounds", 2)
    assert "line 2: thread (25, 0, 0) of block (0, 0, 0) writes 4 bytes" in finding.message
    assert "4 bytes past the end of b (100 bytes)" in finding.message
