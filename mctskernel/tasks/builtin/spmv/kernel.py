"""
[[launch]]
kernel = "spmv"
grid = ["rows"]
args = ["offsets", "columns", "values", "x", "y"]
constexprs = { BLOCK = "BLOCK" }
num_warps = 1
"""

import triton
import triton.language as tl

BLOCK = 32


# One program per row.
@triton.jit
def spmv(offsets, columns, values, x, y, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    end = tl.load(offsets + row + 1)
    total = 0.0
    for start in range(tl.load(offsets + row), end, BLOCK):
        i = start + tl.arange(0, BLOCK)
        col = tl.load(columns + i, mask=i < end, other=0)
        value = tl.load(values + i, mask=i < end, other=0.0)
        total += tl.sum(value * tl.load(x + col, mask=i < end, other=0.0), axis=0)
    tl.store(y + row, total)
