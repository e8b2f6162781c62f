"""Tensor instructions through WMMA-like inline PTX, against numpy's matrix product."""
# ruff: noqa: E501 (kernels read better unwrapped)

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.profiling.emulator.launching import Compiler, launched

SHAPES = [
    *(
        (f"m16n8k{k}", "f32", kind, kind, "f32")
        for kind, depths in (("f16", (8, 16)), ("bf16", (8, 16)), ("tf32", (4, 8)))
        for k in depths
    ),
    *((f"m16n8k{k}", "f16", "f16", "f16", "f16") for k in (8, 16)),
    *((f"m16n8k{k}", "s32", a, b, "s32") for k in (16, 32) for a in ("s8", "u8") for b in ("s8", "u8")),
    *(("m16n8k32", "f32", a, b, "f32") for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")),
]
BITS = {
    "f16": 16,
    "bf16": 16,
    "tf32": 32,
    "f32": 32,
    "s32": 32,
    **dict.fromkeys(("s8", "u8", "e4m3", "e5m2"), 8),
}


FLOAT8 = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


def position_a(kind: str, lane: int, i: int) -> tuple[int, int]:
    """Row and column of element i of a lane's A, as the PTX ISA's tables give them shape by shape."""
    group, member = lane >> 2, lane % 4
    if kind == "tf32":
        return group + (8 if i % 2 else 0), member + (4 if i >= 2 else 0)
    if BITS[kind] == 16:
        row = group if i < 2 or 4 <= i < 6 else group + 8
        return row, member * 2 + (i & 1) + (8 if i >= 4 else 0)
    row = group if i < 4 or 8 <= i < 12 else group + 8
    return row, member * 4 + (i & 3) + (16 if i >= 8 else 0)


def position_b(kind: str, lane: int, i: int) -> tuple[int, int]:
    group, member = lane >> 2, lane % 4
    if kind == "tf32":
        return member + 4 * i, group
    if BITS[kind] == 16:
        return member * 2 + (i & 1) + (8 if i >= 2 else 0), group
    return member * 4 + (i & 3) + (16 if i >= 4 else 0), group


def packed(kind: str, values: list[int]) -> np.ndarray:
    if kind == "f16":
        return np.array(values, np.float16).view(np.uint32)
    if kind == "bf16":
        return (np.array(values, np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint32)
    if kind in ("tf32", "f32"):
        return np.array(values, np.float32).view(np.uint32)
    if kind in FLOAT8:
        return np.array(values, FLOAT8[kind]).view(np.uint32)
    return np.array(values, np.int32 if kind == "s32" else "i1" if kind == "s8" else "u1").view(np.uint32)


@pytest.mark.parametrize("types", SHAPES, ids=".".join)
def test_mma_shapes(lanes: Any, types: tuple[str, str, str, str, str]) -> None:
    shape, d, a, b, c = types
    k = int(shape.rpartition("k")[2])
    rng = np.random.default_rng(k)
    # 9 has too many bits for e5m2.
    low, high = (-8, 9) if "e5m2" in (a, b) else (0 if "u8" in (a, b) else -9, 10)
    left, right, start = (rng.integers(low, high, extents) for extents in ((16, k), (k, 8), (16, 8)))
    rows = [(t >> 2, t % 4 * 2) for t in range(32)]
    counts = [16 * k // 32, 8 * k // 32]
    columns: list[np.ndarray] = []
    for kind, matrix, position, n in ((a, left, position_a, counts[0]), (b, right, position_b, counts[1])):
        by_lane = [packed(kind, [int(matrix[position(kind, t, i)]) for i in range(n)]) for t in range(32)]
        columns += list(np.array(by_lane).T)
    sums = [packed(c, [int(start[r + 8 * (i // 2), q + i % 2]) for i in range(4)]) for r, q in rows]
    columns += list(np.array(sums).T)
    registers = [f"%a{i}" for i in range(len(columns))]
    split = [16 * k * BITS[a] // 1024, 8 * k * BITS[b] // 1024]
    parts = [registers[: split[0]], registers[split[0] : sum(split)], registers[sum(split) :]]
    targets = [f"%d{i}" for i in range(len(parts[2]))]
    lists = ", ".join("{" + ", ".join(names) + "}" for names in (targets, *parts))
    body = f"mma.sync.aligned.{shape}.row.col.{d}.{a}.{b}.{c} {lists};"
    type_ = "f32" if c == "f32" else "b32"
    inputs = [("b32", x) for x in columns[: sum(split)]] + [(type_, x) for x in columns[sum(split) :]]
    found = lanes(body, [(t, np.ascontiguousarray(x)) for t, x in inputs], [type_] * len(targets), lanes=32)
    wanted = left @ right + start
    by_lane = [packed(d, [int(wanted[r + 8 * (i // 2), q + i % 2]) for i in range(4)]) for r, q in rows]
    assert np.array(found).T.tolist() == np.array(by_lane).tolist()


def test_mma_of_whole_numbers_that_saturates(lanes: Any) -> None:
    body = (
        "mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32 {%d0, %d1, %d2, %d3}, "
        "{%a0, %a0, %a0, %a0}, {%a1, %a1}, {%a2, %a2, %a3, %a3};"
    )
    ones, minus = packed("s8", [127] * 4)[0], packed("s8", [-128] * 4)[0]
    top, bottom = np.uint32(0x7FFFFFF0), np.uint32(0x80000010)
    found = lanes(body, [("b32", x) for x in (ones, ones, top, bottom)], ["b32"] * 4, lanes=32)
    assert [int(f[0]) for f in found] == [0x7FFFFFFF] * 2 + [0x80000010 + 32 * 127 * 127] * 2
    found = lanes(body, [("b32", x) for x in (ones, minus, top, bottom)], ["b32"] * 4, lanes=32)
    assert [int(f[0]) for f in found] == [0x7FFFFFF0 - 32 * 127 * 128] * 2 + [0x80000000] * 2


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_matrices_loaded_and_stored_again(lanes: Any, number: int, trans: str) -> None:
    """`ldmatrix` gives each lane two neighbours of its row; `stmatrix` puts them where they came from."""
    a = np.random.default_rng(number).integers(0, 1 << 32, (32, 4), dtype=np.uint64).astype(np.uint32)
    names = ", ".join(f"%d{i}" for i in range(number))
    body = (
        ".shared .align 16 .b8 s[512]; .shared .align 16 .b8 r[512]; mov.u32 %t1, %laneid; shl.b32 %t1, %t1, 4;"
        "mov.u32 %t2, s; add.u32 %t2, %t2, %t1; mov.u32 %t3, r; add.u32 %t3, %t3, %t1;"
        "st.shared.v4.b32 [%t2], {%a0, %a1, %a2, %a3}; st.shared.v4.b32 [%t3], {%a0, %a0, %a0, %a0}; bar.sync 0;"
        f"ldmatrix.sync.aligned.m8n8.x{number}{trans}.shared.b16 {{{names}}}, [%t2];"
        f"stmatrix.sync.aligned.m8n8.x{number}{trans}.shared.b16 [%t3], {{{names}}}; bar.sync 0;"
        "ld.shared.v4.b32 {%d4, %d5, %d6, %d7}, [%t3];"
    )
    body += "".join(f"mov.b32 %d{i}, 0;" for i in range(number, 4))
    columns = [("b32", np.ascontiguousarray(a[:, i])) for i in range(4)]
    *found, x, y, z, w = lanes(body, columns, ["b32"] * 8, lanes=32)
    halves = a.view(np.uint16).reshape(4, 8, 8)
    for m in range(number):
        matrix = halves[m].T if trans else halves[m]
        wanted = [
            int(matrix[t // 4, t % 4 * 2]) | int(matrix[t // 4, t % 4 * 2 + 1]) << 16 for t in range(32)
        ]
        assert found[m].tolist() == wanted
    np.testing.assert_array_equal(np.stack([x, y, z, w], 1)[: 8 * number], a[: 8 * number])


WMMA = """#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void k(const IN* a, const IN* b, const OUT* c, OUT* d) {
  __shared__ __align__(32) IN sa[64 * 32]; for (int i = threadIdx.x; i < 64 * 32; i += 32) sa[i] = i < LENGTH_A ? a[i] : (IN)0;
  __syncthreads();
  wmma::fragment<wmma::matrix_a, SHAPE, FRAGMENT, wmma::A_major> fa;
  wmma::fragment<wmma::matrix_b, SHAPE, FRAGMENT, wmma::B_major> fb;
  wmma::fragment<wmma::accumulator, SHAPE, OUT> fc;
  wmma::load_matrix_sync(fa, sa, STRIDE_A); wmma::load_matrix_sync(fb, b, STRIDE_B);
  wmma::load_matrix_sync(fc, c, STRIDE_C, wmma::mem_C_major);
  wmma::mma_sync(fc, fa, fb, fc);
  for (int i = 0; i < fc.num_elements; i++) fc.x[i] += fc.x[i];
  wmma::store_matrix_sync(d, fc, STRIDE_C, wmma::mem_C_major);
}
"""
PRODUCTS = [
    *(
        (16, 16, 16, "half", "half", o, x, y, z)
        for o, x, y, z in itertools.product(("float", "half"), *[("row", "col")] * 3)
    ),
    *((m, n, 16, "half", "half", "float", "row", "col", "row") for m, n in ((32, 8), (8, 32))),
    (16, 16, 16, "__nv_bfloat16", "__nv_bfloat16", "float", "row", "row", "row"),
    (16, 16, 8, "float", "wmma::precision::tf32", "float", "row", "col", "row"),
    (16, 16, 16, "signed char", "signed char", "int", "row", "col", "row"),
]


@pytest.mark.parametrize("case", PRODUCTS, ids=lambda case: "-".join(map(str, case)))
def test_wmma(cuda: Compiler, case: tuple[int, int, int, str, str, str, str, str, str]) -> None:
    m, n, k, given, fragment, result, layout_a, layout_b, layout_c = case
    stride_a, stride_b = k if layout_a == "row" else m, n if layout_b == "row" else k
    stride_c = (n if layout_c == "row" else m) + 16
    words = {"IN": given, "OUT": result, "LENGTH_A": m * k, "SHAPE": f"{m}, {n}, {k}", "FRAGMENT": fragment}
    words |= {"STRIDE_A": stride_a, "STRIDE_B": stride_b, "STRIDE_C": stride_c}
    words |= {"A_": layout_a + "_", "B_": layout_b + "_", "mem_C_": f"mem_{layout_c}_"}
    source = "#include <cuda_bf16.h>\n" + WMMA
    for word in sorted(words, key=len, reverse=True):
        source = source.replace(word, str(words[word]))
    rng = np.random.default_rng(m)
    low = 0 if given.startswith("unsigned") else -5
    a, b = rng.integers(low, 6, (m, k)), rng.integers(low, 6, (k, n))
    stored = {"half": "f2", "float": "f4", "signed char": "i1", "unsigned char": "u1", "int": "i4"}

    def laid(x: np.ndarray, layout: str, kind: str) -> np.ndarray:
        x = x if layout == "row" else x.T
        if kind == "__nv_bfloat16":
            return (np.ascontiguousarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return np.ascontiguousarray(x, stored[kind])

    extents = (m, stride_c) if layout_c == "row" else (n, stride_c)
    c = rng.integers(0, 9, extents).astype(stored[result])
    operands = {"a": laid(a, layout_a, given), "b": laid(b, layout_b, given)}
    done, memory = launched(cuda(source), operands | {"c": c, "d": np.zeros_like(c)})
    assert [f.message for f in done.findings] == []
    found = memory.array("d", stored[result]).reshape(extents)
    found, start = (x if layout_c == "row" else x.T for x in (found, c))
    np.testing.assert_array_equal(found[:m, :n], 2 * (a @ b + start[:m, :n]))
