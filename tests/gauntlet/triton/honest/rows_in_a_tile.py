"""
[[launch]]
kernel = "rmsnorm"
grid = ["ceil_div(rows, ROWS)"]
args = ["x", "weight", "out", "rows", "cols", "eps"]
constexprs = { ROWS = "ROWS", BLOCK = 256 }
num_warps = 4
"""

import triton
import triton.language as tl

ROWS = 4


# Four rows at a time in tiles of two dimensions, by a loop that counts with while; the rows are read twice.
@triton.jit
def rmsnorm(x, weight, out, rows, cols, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    squares = tl.zeros([ROWS], tl.float32)
    start = 0
    while start < cols:
        col = start + tl.arange(0, BLOCK)
        there = (row < rows)[:, None] & (col < cols)[None, :]
        value = tl.load(
            x + row[:, None] * cols + col[None, :], mask=there, other=0.0, eviction_policy="evict_last"
        )
        squares += tl.sum(value.to(tl.float32) * value.to(tl.float32), axis=1)
        start += BLOCK
    scale = 1.0 / tl.sqrt_rn(squares / cols + eps)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        there = (row < rows)[:, None] & (col < cols)[None, :]
        at = row[:, None] * cols + col[None, :]
        value = tl.load(x + at, mask=there, other=0.0, eviction_policy="evict_first").to(tl.float32)
        w = tl.load(weight + col, mask=col < cols, other=0.0).to(tl.float32)
        tl.store(out + at, (value * scale[:, None] * w[None, :]).to(tl.bfloat16), mask=there)
