"""
[[launch]]
kernel = "clear"
grid = ["ceil_div(M * N, 256)"]
args = ["sums", "M * N"]
constexprs = { BLOCK = 256 }

[[launch]]
kernel = "multiply"
grid = ["ceil_div(N, 16)", "ceil_div(M, 16)", 2]
args = ["a", "b", "sums", "M", "N", "K"]
constexprs = { BLOCK = 16 }
num_warps = 1

[[launch]]
kernel = "finish"
grid = ["ceil_div(M * N, 256)"]
args = ["sums", "c", "M * N"]
constexprs = { BLOCK = 256 }

[[scratch]]
name = "sums"
dtype = "float32"
shape = ["M", "N"]
"""

import triton
import triton.language as tl


@triton.jit
def clear(sums, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(sums + i, tl.zeros([BLOCK], tl.float32), mask=i < n)


# Two programs a tile, whose parts of K alternate, add to float32 scratch; a third launch rounds.
@triton.jit
def multiply(a, b, sums, M, N, K, BLOCK: tl.constexpr):
    row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[:, None]
    col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    product = tl.zeros([BLOCK, BLOCK], tl.float32)
    for start in range(tl.program_id(2) * BLOCK, K, 2 * BLOCK):
        k = start + tl.arange(0, BLOCK)
        left = tl.load(a + row * K + k[None, :], mask=(row < M) & (k[None, :] < K), other=0.0)
        right = tl.load(b + k[:, None] * N + col, mask=(k[:, None] < K) & (col < N), other=0.0)
        product = tl.dot(left, right, product)
    tl.atomic_add(sums + row * N + col, product, mask=(row < M) & (col < N))


@triton.jit
def finish(sums, c, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(c + i, tl.load(sums + i, mask=i < n), mask=i < n)
