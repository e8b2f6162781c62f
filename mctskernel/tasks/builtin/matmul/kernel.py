"""
[[launch]]
kernel = "matmul"
grid = ["ceil_div(N, BLOCK_N)", "ceil_div(M, BLOCK_M)"]
args = ["a", "b", "c", "M", "N", "K"]
constexprs = { BLOCK_M = "BLOCK_M", BLOCK_N = "BLOCK_N", BLOCK_K = "BLOCK_K" }
num_warps = 4
num_stages = 1
"""

import triton
import triton.language as tl

BLOCK_M = 16
BLOCK_N = 16
BLOCK_K = 16


# One program per tile of the product. Row-major: a is M x K, b is K x N, c is M x N.
@triton.jit
def matmul(a, b, c, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    row = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    col = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    product = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, K, BLOCK_K):
        across = start + tl.arange(0, BLOCK_K)[None, :]
        down = start + tl.arange(0, BLOCK_K)[:, None]
        left = tl.load(a + row * K + across, mask=(row < M) & (across < K), other=0.0)
        right = tl.load(b + down * N + col, mask=(down < K) & (col < N), other=0.0)
        product = tl.dot(left, right, product, input_precision="ieee")
    tl.store(c + row * N + col, product, mask=(row < M) & (col < N))
