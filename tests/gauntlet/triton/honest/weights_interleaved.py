"""
[[launch]]
kernel = "int4_matmul"
grid = ["ceil_div(N, 16)", "ceil_div(M, 16)"]
args = ["x", "packed", "scales", "out", "M", "N", "K", "group"]
constexprs = { BLOCK = 16, PAIRS = 32 }
num_warps = 2
num_stages = 2
"""

import triton
import triton.language as tl


# Codes of both halves side by side by tl.join and a reshape, then one product of the whole depth.
@triton.jit
def int4_matmul(x, packed, scales, out, M, N, K, group, BLOCK: tl.constexpr, PAIRS: tl.constexpr):
    row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[:, None]
    col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    total = tl.zeros([BLOCK, BLOCK], tl.float32)
    for start in range(0, K, 2 * PAIRS):
        pair = start // 2 + tl.arange(0, PAIRS)[None, :]
        k = start + tl.arange(0, 2 * PAIRS)[None, :]
        codes = tl.load(packed + col * (K // 2) + pair, mask=(col < N) & (pair < K // 2), other=0)
        codes = tl.reshape(tl.join(codes & 15, codes >> 4), (BLOCK, 2 * PAIRS)).to(tl.float32) - 8.0
        scale = tl.load(scales + col * (K // group) + k // group, mask=(col < N) & (k < K), other=0.0).to(
            tl.float32
        )
        left = tl.load(x + row * K + k, mask=(row < M) & (k < K), other=0.0)
        total = tl.dot(left, tl.trans((codes * scale).to(tl.bfloat16)), total)
    to = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    tl.store(out + row * N + to, total, mask=(row < M) & (to < N))
