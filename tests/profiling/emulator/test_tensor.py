"""Tensor instructions through WMMA-like inline PTX, against numpy's matrix product."""
# ruff: noqa: E501 (kernels read better unwrapped)

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mctskernel.profiling.emulator import Geometry, GlobalMemory, Module, count, execute

Compiler = Callable[[str], Module]

HEAD = """
__device__ unsigned at(const void* p) { return __cvta_generic_to_shared(p); }
extern "C" __global__ void k(const unsigned short* a, const unsigned short* b, float* c) {
  __shared__ __align__(16) unsigned short A[16][16], B[16][8];
  int t = threadIdx.x; for (int i = t; i < 256; i += 32) A[i / 16][i % 16] = a[i];
  for (int i = t; i < 128; i += 32) B[i / 8][i % 8] = b[i];
  __syncthreads();
  unsigned x[4], y[2]; float d[4] = {1, 1, 1, 1};
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(at(&A[t % 16][t / 16 * 8])));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(y[0]), "=r"(y[1]) : "r"(at(&B[t % 16][0])));
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.TYPE.TYPE.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
  for (int i = 0; i < 4; i++) c[(t / 4 + i / 2 * 8) * 8 + t % 4 * 2 + i % 2] = d[i];
}
"""


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_ldmatrix_and_mma(cuda: Compiler, kind: str) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(-8, 8, (16, 16)).astype(np.float32), rng.integers(-8, 8, (16, 8)).astype(np.float32)

    def stored(x: np.ndarray) -> np.ndarray:
        return (
            x.astype(np.float16).view(np.uint16)
            if kind == "f16"
            else (x.view(np.uint32) >> 16).astype(np.uint16)
        )

    memory = GlobalMemory()
    arguments = [memory.add("a", stored(a)), memory.add("b", stored(b)), memory.add("c", 512)]
    done = execute(cuda(HEAD.replace("TYPE", kind)), "k", Geometry((1, 1, 1), (32, 1, 1)), arguments, memory)
    assert done.findings == ()
    np.testing.assert_array_equal(memory.array("c", np.float32).reshape(16, 8), a @ b + 1)


def test_ldmatrix_bank_conflicts_are_counted(cuda: Compiler) -> None:
    memory = GlobalMemory()
    arguments = [memory.add(n, 4096, virtual=True) for n in "abc"]
    counts = count(cuda(HEAD.replace("TYPE", "f16")), "k", Geometry((1, 1, 1), (32, 1, 1)), arguments, memory)
    matrix = {a.opcode.split(".")[4]: a for a in counts.accesses if a.opcode.startswith("ldmatrix")}
    assert (matrix["x4"].wavefronts, matrix["x4"].ideal_wavefronts) == (8, 4)
    assert (matrix["x2"].wavefronts, matrix["x2"].ideal_wavefronts) == (2, 2)
    assert counts.warp_instructions["mma"] == 1
