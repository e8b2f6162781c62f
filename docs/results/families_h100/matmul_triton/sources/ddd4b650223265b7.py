"""
[[launch]]
kernel = "matmul"
grid = ["ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N)"]
args = ["a", "b", "c", "M", "N", "K"]
constexprs = { BLOCK_M = "BLOCK_M", BLOCK_N = "BLOCK_N", BLOCK_K = "BLOCK_K", GROUP = "GROUP" }
num_warps = 4
num_stages = 3
"""

import triton
import triton.language as tl

BLOCK_M = 128
BLOCK_N = 128
BLOCK_K = 32
GROUP = 8


# One program per tile of the product; programs go down GROUP tiles before they go across, so that L2 serves more.
@triton.jit
def matmul(
    a, b, c, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    down = tl.cdiv(M, BLOCK_M)
    across = tl.cdiv(N, BLOCK_N)
    band = tl.program_id(0) // (GROUP * across)
    height = tl.minimum(down - band * GROUP, GROUP)
    place = tl.program_id(0) % (GROUP * across)
    row = (band * GROUP + place % height) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    col = place // height * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    product = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, K, BLOCK_K):
        i = start + tl.arange(0, BLOCK_K)
        left = tl.load(a + row * K + i[None, :], mask=(row < M) & (i[None, :] < K), other=0.0)
        right = tl.load(b + i[:, None] * N + col, mask=(i[:, None] < K) & (col < N), other=0.0)
        product = tl.dot(left, right, product)
    tl.store(c + row * N + col, product, mask=(row < M) & (col < N))
