"""Loads and stores of every width, vectors, state spaces and generic addresses; asynchronous copies; barriers."""

from typing import Any

import numpy as np
import pytest

from mctskernel.profiling.emulator import Geometry, GlobalMemory, execute, parse_ptx
from tests.profiling.emulator.launching import launched

LANES = 64


def run(module: Any, buffers: dict[str, Any], *, threads: int = LANES, blocks: int = 1) -> GlobalMemory:
    done, memory = launched(module, buffers, blocks, threads)
    assert [f.message for f in done.findings] == []
    return memory


@pytest.mark.parametrize("type_", ["u8", "s8", "u16", "s16"])
def test_narrow_loads_extend(lanes: Any, type_: str) -> None:
    """Through shared memory, so that the value is stored narrow and loaded narrow."""
    a = np.random.default_rng(1).integers(0, 1 << 32, LANES, dtype=np.uint64).astype(np.uint32)
    size = int(type_[1:]) // 8
    body = (
        f".shared .align 8 .b8 buffer[256]; mov.u32 %t1, %tid.x; mul.lo.u32 %t1, %t1, {size};"
        f"mov.u32 %t2, buffer; add.u32 %t1, %t1, %t2; st.shared.{type_} [%t1], %a0; ld.shared.{type_} %d0, [%t1];"
    )
    (found,) = lanes(body, [("u32", a)], ["u32"], lanes=LANES)
    assert (
        found.tolist()
        == a.astype(f"{type_[0].replace('s', 'i')}{size}").astype(np.int64).astype(np.uint32).tolist()
    )


def test_a_shared_address_may_begin_before_its_variable(lanes: Any) -> None:
    """Blackwell's PTX subtracts an index from the address of an array at 0 and adds the rest as an offset."""
    a = np.arange(LANES, dtype=np.uint32)
    body = (
        ".shared .align 4 .b8 buffer[256]; mov.u32 %t1, %tid.x; shl.b32 %t1, %t1, 2; mov.u32 %t2, buffer;"
        "add.u32 %t3, %t2, %t1; st.shared.u32 [%t3], %a0; bar.sync 0;"
        "sub.u32 %t3, %t2, %t1; ld.shared.u32 %d0, [%t3+124];"
    )
    (found,) = lanes(body, [("u32", a)], ["u32"], lanes=LANES)
    assert found.tolist() == a.reshape(-1, 32)[:, ::-1].reshape(-1).tolist()


@pytest.mark.parametrize(
    ("count", "element"), [(2, "u32"), (4, "u32"), (2, "u64"), (4, "f32"), (4, "u8"), (2, "b16")]
)
@pytest.mark.parametrize("space", ["global", "generic"])
def test_vectors(count: int, element: str, space: str) -> None:
    """A vector is loaded in one piece and stored with its elements the other way round."""
    size = int(element[1:]) // 8
    dot = "" if space == "generic" else ".global"
    held = f"b{max(16, 8 * size)}" if element[0] != "f" else element
    names = [f"%e{i}" for i in range(count)]
    body = (
        f".reg .{held} %e<{count}>; .reg .b64 %q; cvt.u64.u32 %w0, %i; mul.lo.u64 %w0, %w0, {count * size};"
        f"add.u64 %w1, %a0, %w0; ld{dot}.v{count}.{element} {{{', '.join(names)}}}, [%w1];"
        f"add.u64 %w2, %a1, %w0; st{dot}.v{count}.{element} [%w2], {{{', '.join(reversed(names))}}}; mov.u64 %d0, 0;"
    )
    data = np.random.default_rng(0).integers(0, 255, (LANES, count * size)).astype(np.uint8)
    source = (
        ".version 8.5\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 a, .param .u64 b)\n{\n"
        ".reg .b64 %a0, %a1, %d0, %w<4>; .reg .b32 %i; mov.u32 %i, %tid.x;"
        f"ld.param.u64 %a0, [a]; ld.param.u64 %a1, [b];\n{body}\nret;\n}}"
    )
    memory = run(parse_ptx(source), {"a": data, "b": data.size})
    found = memory.array("b").reshape(LANES, count, size)
    assert found.tolist() == data.reshape(LANES, count, size)[:, ::-1].tolist()


GENERIC = """
__constant__ int table[4] = {5, 6, 7, 8};
__device__ int counter[64];
__device__ __noinline__ int* choose(int t, int* a, int* b, int* c) { return t % 3 == 0 ? a : t % 3 == 1 ? b : c; }
extern "C" __global__ void k(int* out, int* in) {
  __shared__ int s[64]; int mine[8]; int t = threadIdx.x;
  for (int i = 0; i < 8; i++) mine[i] = 100 * t + i;
  s[t] = 1000 + t; counter[t] = 1; __syncthreads();
  int* p = choose(t, &s[63 - t], &mine[in[t] & 7], &in[t]);
  *p += table[t & 3]; __syncthreads();
  out[t] = *p + 10000 * counter[t] + (mine[3] - 100 * t);
}
"""


def test_generic_addresses_reach_every_space(cuda: Any) -> None:
    """Lanes of one instruction go to shared, local and global memory."""
    start = np.random.default_rng(2).integers(0, 50, 64).astype(np.int32)
    memory = run(cuda(GENERIC), {"out": 256, "in": start})
    wanted = []
    for t in range(64):
        v = [1000 + 63 - t, 100 * t + (int(start[t]) & 7), int(start[t])][t % 3] + 5 + t % 4
        third = 3 + (5 + t % 4 if t % 3 == 1 and int(start[t]) & 7 == 3 else 0)
        wanted.append(v + 10000 + third)
    assert memory.array("out", np.int32).tolist() == wanted


COPY = """
extern "C" __global__ void k(const int* a, int* b) {
  __shared__ __align__(16) int s[256]; int t = threadIdx.x;
  unsigned p = (unsigned)__cvta_generic_to_shared(s + 4 * t);
  int n = 4 * (t % 5);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(p), "l"(a + 4 * t), "r"(n) : "memory");
  asm volatile("cp.async.commit_group;\\ncp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  for (int i = 0; i < 4; i++) b[4 * t + i] = s[(4 * t + i + 4) % 256];
}
"""


def test_async_copy_fills_with_zeros(cuda: Any) -> None:
    a = np.arange(1, 257, dtype=np.int32)
    memory = run(cuda(COPY), {"a": a, "b": 1024})
    copied = [int(a[j]) if j % 4 < (j // 4) % 5 else 0 for j in range(256)]
    assert memory.array("b", np.int32).tolist() == [copied[(j + 4) % 256] for j in range(256)]


@pytest.mark.parametrize("threads", [64, 50, 32, 7])
def test_barrier_reductions(cuda: Any, threads: int) -> None:
    source = """extern "C" __global__ void k(const int* a, int* b) {
      int t = threadIdx.x, v = a[blockIdx.x * blockDim.x + t];
      int n = __syncthreads_count(v > 3), e = __syncthreads_and(v > 0), o = __syncthreads_or(v == 9);
      b[blockIdx.x * blockDim.x + t] = n * 4 + (e != 0) * 2 + (o != 0); }"""
    a = np.random.default_rng(threads).integers(0, 10, 3 * threads).astype(np.int32)
    a[:threads] = 5
    memory = run(cuda(source), {"a": a, "b": a.nbytes}, threads=threads, blocks=3)
    wanted = [int((v > 3).sum()) * 4 + int((v > 0).all()) * 2 + int((v == 9).any()) for v in a.reshape(3, -1)]
    assert memory.array("b", np.int32).reshape(3, -1).tolist() == [[w] * threads for w in wanted]


def test_parameters_by_value(cuda: Any) -> None:
    """A struct, a float, a double and a 16-bit number in one parameter list."""
    source = """struct S { int n; float f[3]; double d; };
    extern "C" __global__ void k(double* b, S s, float f, double d, short h, unsigned char c) {
      b[threadIdx.x] = s.n + s.f[threadIdx.x % 3] + s.d + f + d + h + c; }"""
    memory = GlobalMemory()
    s = (
        np.array([7], np.int32).tobytes()
        + np.array([0.5, 1.5, 2.5], np.float32).tobytes()
        + np.array([0.125]).tobytes()
    )
    arguments = [memory.add("b", 24), s, 0.25, 1.0, np.int16(-3), 200]
    done = execute(cuda(source), "k", Geometry((1, 1, 1), (3, 1, 1)), arguments, memory)
    assert done.findings == ()
    assert memory.array("b", np.float64).tolist() == [
        7 + f + 0.125 + 0.25 + 1 - 3 + 200 for f in (0.5, 1.5, 2.5)
    ]


def test_arguments_that_do_not_fit_are_the_callers_mistake(cuda: Any) -> None:
    module = cuda('extern "C" __global__ void k(int* b, int n) { b[0] = n; }')
    memory = GlobalMemory()
    geometry = Geometry((1, 1, 1), (1, 1, 1))
    with pytest.raises(ValueError, match="takes 2 arguments, not 1"):
        execute(module, "k", geometry, [memory.add("b", 4)], memory)
    with pytest.raises(ValueError, match="takes 4 bytes, not 8"):
        execute(module, "k", geometry, [memory.add("c", 4), np.int64(1)], memory)
