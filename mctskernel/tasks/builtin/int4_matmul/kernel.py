"""
[[launch]]
kernel = "int4_matmul"
grid = ["ceil_div(N, BLOCK_N)", "ceil_div(M, BLOCK_M)"]
args = ["x", "packed", "scales", "out", "M", "N", "K", "group"]
constexprs = { BLOCK_M = "BLOCK_M", BLOCK_N = "BLOCK_N", BLOCK_K = "BLOCK_K" }
num_warps = 4
num_stages = 1
"""

import triton
import triton.language as tl

BLOCK_M = 16
BLOCK_N = 16
BLOCK_K = 16


# One program per tile of the output; a turn of the loop takes BLOCK_K bytes of each row of weights, two weights a byte.
@triton.jit
def int4_matmul(
    x,
    packed,
    scales,
    out,
    M,
    N,
    K,
    group,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    row = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    col = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, K // 2, BLOCK_K):
        across = start + tl.arange(0, BLOCK_K)[None, :]
        down = start + tl.arange(0, BLOCK_K)[:, None]
        mask = (down < K // 2) & (col < N)
        pair = tl.load(packed + col * (K // 2) + down, mask=mask, other=0).to(tl.int32)
        low_scale = tl.load(scales + col * (K // group) + 2 * down // group, mask=mask, other=0.0)
        high_scale = tl.load(scales + col * (K // group) + (2 * down + 1) // group, mask=mask, other=0.0)
        low = ((pair & 15) - 8).to(x.dtype.element_ty) * low_scale
        high = ((pair >> 4) - 8).to(x.dtype.element_ty) * high_scale
        even = tl.load(x + row * K + 2 * across, mask=(row < M) & (across < K // 2), other=0.0)
        odd = tl.load(x + row * K + 2 * across + 1, mask=(row < M) & (across < K // 2), other=0.0)
        total = tl.dot(even, low, total)
        total = tl.dot(odd, high, total)
    tl.store(out + row * N + col, total, mask=(row < M) & (col < N))
