"""
[[launch]]
kernel = "cumsum"
grid = ["ceil_div(rows, 4)"]
args = ["x", "out", "rows", "cols"]
constexprs = { ROWS = 4, BLOCK = 128 }
num_warps = 4
"""

import triton
import triton.language as tl


@triton.jit
def add_pairs(sum_a, error_a, sum_b, error_b):
    total = sum_a + sum_b
    part = total - sum_a
    lost = (sum_a - (total - part)) + (sum_b - part)
    return total, error_a + error_b + lost


# A scan with a combination of its own: sums and what was lost in them, four rows a program.
@triton.jit
def cumsum(x, out, rows, cols, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    before = tl.zeros([ROWS, 1], tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)[None, :]
        there = (row < rows) & (col < cols)
        value = tl.load(x + row * cols + col, mask=there, other=0.0)
        sums, errors = tl.associative_scan((value, tl.zeros_like(value)), 1, add_pairs)
        through = before + (sums + errors)
        tl.store(out + row * cols + col, through, mask=there)
        before += tl.sum(value, axis=1, keep_dims=True)
