"""
[[launch]]
kernel = "attention"
grid = ["ceil_div(seq, BLOCK_M)", "heads"]
args = ["q", "k", "v", "out", "seq", "dim"]
constexprs = { BLOCK_M = "BLOCK_M", BLOCK_N = "BLOCK_N", SKIP = "SKIP", BLOCK_D = "max(16, next_pow2(dim))" }
num_warps = 4
num_stages = 2
"""

import triton
import triton.language as tl

BLOCK_M = 64
BLOCK_N = 64
SKIP = 1


# One program per block of queries; with SKIP it leaves out the keys that lie in the future of all of them.
@triton.jit
def attention(
    q, k, v, out, seq, dim,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SKIP: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1) * seq
    query = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    i = tl.arange(0, BLOCK_D)[None, :]
    asked = tl.load(q + (head + query) * dim + i, mask=(query < seq) & (i < dim), other=0.0)
    scale = 1.4426950408889634 * tl.rsqrt(tl.zeros([1, 1], tl.float32) + dim)
    largest = tl.full([BLOCK_M, 1], -3.0e38, tl.float32)
    total = tl.zeros([BLOCK_M, 1], tl.float32)
    mixed = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    last = tl.minimum(seq, (tl.program_id(0) + 1) * BLOCK_M) if SKIP == 1 else seq
    for start in range(0, last, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        inside = (key[:, None] < seq) & (i < dim)
        keys = tl.load(k + (head + key[:, None]) * dim + i, mask=inside, other=0.0)
        score = tl.dot(asked, tl.trans(keys)) * scale
        score = tl.where((key[None, :] <= query) & (key[None, :] < seq), score, -3.0e38)
        larger = tl.maximum(largest, tl.max(score, axis=1, keep_dims=True))
        weight = tl.exp2(score - larger)
        shrink = tl.exp2(largest - larger)
        total = total * shrink + tl.sum(weight, axis=1, keep_dims=True)
        values = tl.load(v + (head + key[:, None]) * dim + i, mask=inside, other=0.0)
        mixed = mixed * shrink + tl.dot(weight.to(values.dtype), values)
        largest = larger
    tl.store(out + (head + query) * dim + i, mixed / total, mask=(query < seq) & (i < dim))
