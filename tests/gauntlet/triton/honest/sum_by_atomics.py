"""
[[launch]]
kernel = "clear"
grid = [1]
args = ["out"]
num_warps = 1

[[launch]]
kernel = "add"
grid = ["min(ceil_div(n, 1024), 528)"]
args = ["x", "out", "n"]
constexprs = { BLOCK = 1024 }
num_warps = 8
"""

import triton
import triton.language as tl


@triton.jit
def clear(out):
    tl.store(out, 0.0)


# Programs add to the output in any order; a vector of partial sums is reduced once, at the end.
@triton.jit
def add(x, out, n, BLOCK: tl.constexpr):
    sums = tl.zeros([BLOCK], tl.float32)
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        i = start + tl.arange(0, BLOCK)
        sums += tl.load(x + i, mask=i < n, other=0.0)
    tl.atomic_add(out, tl.sum(sums, axis=0), sem="relaxed")
