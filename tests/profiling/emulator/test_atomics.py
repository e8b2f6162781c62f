"""Atomics on colliding addresses act as if one lane came after another."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.profiling.emulator.launching import Compiler, launched

MASK = 0xFFFFFFFF
OPERATIONS: dict[str, Callable[[int, int, int], int]] = {
    "add": lambda old, b, c: old + b & MASK,
    "min": lambda old, b, c: min(old, b),
    "max": lambda old, b, c: max(old, b),
    "and": lambda old, b, c: old & b,
    "or": lambda old, b, c: old | b,
    "xor": lambda old, b, c: old ^ b,
    "exch": lambda old, b, c: b,
    "inc": lambda old, b, c: 0 if old >= b else old + 1,
    "dec": lambda old, b, c: b if old == 0 or old > b else old - 1,
    "cas": lambda old, b, c: c if old == b else old,
}


@pytest.mark.parametrize("spread", [1, 3, 64])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_colliding_atomics(cuda: Compiler, operation: str, spread: int) -> None:
    type_ = "b32" if operation in ("and", "or", "xor", "exch", "cas") else "u32"
    last = ", %3" if operation == "cas" else ""
    source = f"""extern "C" __global__ void k(unsigned* acc, const unsigned* at, const unsigned* v, unsigned* old) {{
    int i = threadIdx.x; unsigned d;
    asm volatile("atom.global.{operation}.{type_} %0, [%1], %2{last};"
      : "=r"(d) : "l"(acc + at[i]), "r"(v[i]), "r"(v[i] + 1) : "memory");
    old[i] = d; }}"""
    rng = np.random.default_rng(spread)
    start = rng.integers(0, 6, 64).astype(np.uint32)
    at = rng.integers(0, spread, 96).astype(np.uint32)
    values = rng.integers(0, 6, 96).astype(np.uint32)
    buffers = {"acc": start, "at": at, "v": values, "old": 4 * 96}
    done, memory = launched(cuda(source), buffers, threads=96)
    assert done.findings == ()
    state, found = [int(x) for x in start], []
    for place, value in zip(at.tolist(), values.tolist(), strict=True):
        found.append(state[place])
        state[place] = OPERATIONS[operation](state[place], value, value + 1)
    assert memory.array("acc", "u4").tolist() == state
    assert memory.array("old", "u4").tolist() == found


def test_float_sums_of_one_address(cuda: Compiler) -> None:
    source = 'extern "C" __global__ void k(const float* a, float* s) { atomicAdd(s, a[blockIdx.x * 128 + threadIdx.x]); }'  # noqa: E501
    values = np.random.default_rng(0).standard_normal(1024).astype(np.float32)
    done, memory = launched(cuda(source), {"a": values, "s": np.zeros(1, np.float32)}, 8, 128)
    assert done.findings == ()
    np.testing.assert_allclose(memory.array("s", np.float32)[0], values.sum(dtype=np.float64), rtol=1e-5)


@pytest.mark.parametrize("spread", [1, 5])
def test_a_contended_loop_of_swaps_ends_soon(cuda: Compiler, spread: int) -> None:
    source = f"""extern "C" __global__ void k(unsigned* acc) {{
    __shared__ unsigned bins[{spread}];
    if (threadIdx.x < {spread}) bins[threadIdx.x] = 0;
    __syncthreads();
    unsigned *bin = bins + threadIdx.x % {spread}, seen = *(volatile unsigned*)bin, old;
    do {{
        old = seen;
        seen = atomicCAS(bin, old, old * 3 + 1);
    }} while (seen != old);
    __syncthreads();
    if (threadIdx.x < {spread}) acc[threadIdx.x] = bins[threadIdx.x];
    }}"""
    done, memory = launched(cuda(source), {"acc": 4 * spread}, threads=480)
    assert done.findings == ()
    expected = 0
    for _ in range(480 // spread):
        expected = (3 * expected + 1) & MASK
    assert memory.array("acc", np.uint32).tolist() == [expected] * spread
