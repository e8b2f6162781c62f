"""What the syntax tree says of functions, loops, declarations and accesses, and edits by spans."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mctskernel.edits.syntax import parse, replace, swap, text_of

SOURCE = """\
#include <cuda_fp16.h>
#define BLOCK 256 // threads
#define WARPS (BLOCK / 32)
#define EPS 1e-5f
#define AT(p, i) (p)[(i) + hidden]
#if FAST
#define ITEMS 4
#endif

template <int N> __device__ float scaled(float a) { return a * N; }

extern "C" __global__ void __launch_bounds__(BLOCK, 2)
first(const float* __restrict__ x, float *out, int n, const int m) {
    __shared__ float tile[BLOCK][33];
    extern __shared__ float dynamic[];
    int i = blockIdx.x * blockDim.x + threadIdx.x, k = 0;
    #pragma unroll 4
    for (int j = i; j < n; j += BLOCK) {
        tile[threadIdx.x][j] = x[j];
        out[j] += scaled<3>(tile[j][0]);
    }
    for (unsigned j = 0; j < 8; ++j) k = j;
    atomicAdd(&out[0], 1.0f);
    out[1] = dynamic[2]++;
}

extern "C" {
__global__ void second(half* a) {
    for (int s = 1; s < BLOCK; s *= 2) a[s] = a[0];
    for (int s = BLOCK; s > 0; --s) a[s] = a[0];
    for (int s = 0; s < BLOCK; ++s) { ++s; }
    for (int s = 0, t = 1; s < BLOCK; ++s) a[s] = a[t];
    for (int s = 0; s < n; ++s) { n -= 1; }
}
__global__ void conditional(int* a) {
#ifdef X
    a[0] = 1;
#endif
}
__global__ void broken(int* a) { a[0 = 1; }
}
"""


def test_kernels_are_found_wherever_they_stand() -> None:
    source = parse(SOURCE)
    assert [function.name for function in source.functions][:3] == ["scaled", "first", "second"]
    assert [kernel.name for kernel in source.kernels][:3] == ["first", "second", "conditional"]
    assert source.functions[0].is_template
    assert not source.functions[0].is_kernel


def test_conditional_or_broken_functions_are_not_clean() -> None:
    source = parse(SOURCE)
    assert source.kernel("second") is not None
    assert source.kernel("conditional") is None
    assert source.kernel("broken") is None
    assert parse("#if A\n__global__ void f() {}\n#endif\n").kernel("f") is None


def test_declarations_tell_types_qualifiers_and_extents() -> None:
    first = parse(SOURCE).functions[1]
    assert [(p.name, p.type, p.pointer, p.const, p.restrict) for p in first.parameters] == [
        ("x", "float", True, True, True),
        ("out", "float", True, False, False),
        ("n", "int", False, False, False),
        ("m", "int", False, True, False),
    ]
    declared = [
        (d.name, d.shared, d.extern, [text_of(extent) if extent else None for extent in d.extents])
        for d in first.declarations
    ]
    assert declared == [
        ("tile", True, False, ["BLOCK", "33"]),
        ("dynamic", True, True, [None]),
        *((name, False, False, []) for name in "ikjj"),
    ]


def test_only_loops_that_count_up_by_themselves_are_canonical() -> None:
    source = parse(SOURCE)
    first = source.functions[1].loops
    assert [(loop.variable, loop.comparison, text_of(loop.bound), loop.step) for loop in first] == [
        ("j", "<", "n", "BLOCK"),
        ("j", "<", "8", "1"),
    ]
    assert [loop.pragma is not None for loop in first] == [True, False]
    assert source.functions[2].loops == ()


def test_accesses_tell_reads_from_writes() -> None:
    found = [
        (a.array, [text_of(i) for i in a.indices], a.reads, a.writes)
        for a in parse(SOURCE).functions[1].accesses
    ]
    assert found == [
        ("tile", ["threadIdx.x", "j"], False, True),
        ("x", ["j"], True, False),
        ("out", ["j"], True, True),
        ("tile", ["j", "0"], True, False),
        ("out", ["0"], True, True),
        ("out", ["1"], False, True),
        ("dynamic", ["2"], True, True),
    ]


def test_macros_are_read_where_they_are_plain_numbers() -> None:
    source = parse(SOURCE)
    assert [(macro.name, macro.value) for macro in source.integer_macros] == [("BLOCK", 256)]
    assert source.macro_names == {"BLOCK", "WARPS", "EPS", "AT", "ITEMS"}
    assert "hidden" in source.macro_words


def test_replacements_are_made_at_once_in_bytes() -> None:
    source = parse("int ä = 1; int b = 2; // ö\n")
    one, two = (node for node in source.root.children if node.type == "declaration")
    assert replace(source, [swap(two, "B;"), swap(one, "long ü;")]) == "long ü; B; // ö\n"


@given(st.text(max_size=200))
def test_any_text_parses_and_comes_back(text: str) -> None:
    source = parse(text)
    assert replace(source, []) == text
    assert all(kernel.name for kernel in source.kernels if kernel.clean)
