"""
[[launch]]
kernel = "matmul"
grid = ["ceil_div(N, 32)", "ceil_div(M, 32)"]
args = ["a", "b", "c", "M", "N", "K"]
"""

import triton
import triton.language as tl


@triton.jit
def matmul(a, b, c, M, N, K):
    row = tl.program_id(1) * 32 + tl.arange(0, 32)[:, None]
    col = tl.program_id(0) * 32 + tl.arange(0, 32)[None, :]
    product = tl.zeros([32, 32], tl.float32)
    for start in range(0, K, 32):
        across = start + tl.arange(0, 32)[None, :]
        down = start + tl.arange(0, 32)[:, None]
        left = tl.load(a + row * K + across, mask=(row < M) & (across < K), other=0.0)
        right = tl.load(b + down * N + col, mask=(down < K) & (col < N), other=0.0)
        product = tl.dot(left, right, product)
    tl.store(c + row * N + col, product, mask=(row < M) & (col < N))
