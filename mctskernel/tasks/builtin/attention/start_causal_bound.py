"""
[[launch]]
kernel = "attention"
grid = ["ceil_div(seq, BLOCK_M)", "heads"]
args = ["q", "k", "v", "out", "seq", "dim"]
constexprs = { BLOCK_M = "BLOCK_M", BLOCK_N = "BLOCK_N", BLOCK_D = "max(16, next_pow2(dim))" }
num_warps = 4
num_stages = 1
"""

import triton
import triton.language as tl

BLOCK_M = 16
BLOCK_N = 16


# One program per block of queries, which goes over the keys up to its last query.
@triton.jit
def attention(q, k, v, out, seq, dim, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):
    first = tl.program_id(1) * seq
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    i = tl.arange(0, BLOCK_D)[None, :]
    scale = tl.rsqrt(tl.zeros([1, 1], tl.float32) + dim)
    query = tl.load(q + (first + row) * dim + i, mask=(row < seq) & (i < dim), other=0.0)
    largest = tl.full([BLOCK_M, 1], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M, 1], tl.float32)
    mixed = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in range(0, tl.minimum(seq, (tl.program_id(0) + 1) * BLOCK_M), BLOCK_N):
        down = start + tl.arange(0, BLOCK_N)[:, None]
        across = start + tl.arange(0, BLOCK_N)[None, :]
        key = tl.load(k + (first + down) * dim + i, mask=(down < seq) & (i < dim), other=0.0)
        value = tl.load(v + (first + down) * dim + i, mask=(down < seq) & (i < dim), other=0.0)
        score = tl.dot(query, tl.trans(key)) * scale
        score = tl.where((across <= row) & (across < seq), score, float("-inf"))
        larger = tl.maximum(largest, tl.max(score, axis=1, keep_dims=True))
        weight = tl.exp(score - larger)
        shrink = tl.exp(largest - larger)
        total = total * shrink + tl.sum(weight, axis=1, keep_dims=True)
        mixed = mixed * shrink + tl.dot(weight.to(value.dtype), value)
        largest = larger
    tl.store(out + (first + row) * dim + i, mixed / total, mask=(row < seq) & (i < dim))
