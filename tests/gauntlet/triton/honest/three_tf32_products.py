"""
[[launch]]
kernel = "matmul"
grid = ["ceil_div(N, BLOCK)", "ceil_div(M, BLOCK)"]
args = ["a", "b", "c", "M", "N", "K"]
constexprs = { BLOCK = "BLOCK" }
num_warps = 4
num_stages = 1
"""

import triton
import triton.language as tl

BLOCK = 32


# Float32 on TF32 tensor cores, in three products.
@triton.jit
def matmul(a, b, c, M, N, K, BLOCK: tl.constexpr):
    row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[:, None]
    col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    product = tl.zeros([BLOCK, BLOCK], tl.float32)
    for start in range(0, K, BLOCK):
        across = start + tl.arange(0, BLOCK)[None, :]
        down = start + tl.arange(0, BLOCK)[:, None]
        left = tl.load(a + row * K + across, mask=(row < M) & (across < K), other=0.0)
        right = tl.load(b + down * N + col, mask=(down < K) & (col < N), other=0.0)
        product = tl.dot(left, right, product, input_precision="tf32x3")
    tl.store(c + row * N + col, product, mask=(row < M) & (col < N))
