"""
[[launch]]
kernel = "spmv"
grid = ["ceil_div(rows, ROWS)"]
args = ["offsets", "columns", "values", "x", "y", "rows"]
constexprs = { ROWS = "ROWS", BLOCK = 16 }
num_warps = 4
"""

import triton
import triton.language as tl

ROWS = 16


# Sixteen rows of uneven length in one tile, as long as any of them has elements left.
@triton.jit
def spmv(offsets, columns, values, x, y, rows, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = tl.load(offsets + row, mask=row < rows, other=0)
    end = tl.load(offsets + row + 1, mask=row < rows, other=0)
    sums = tl.zeros([ROWS, BLOCK], tl.float32)
    while tl.max(end - at, axis=0) > 0:
        i = at[:, None] + tl.arange(0, BLOCK)[None, :]
        there = i < end[:, None]
        col = tl.load(columns + i, mask=there, other=0)
        value = tl.load(values + i, mask=there, other=0.0)
        sums += value * tl.where(there, tl.load(x + col, mask=there, other=0.0), 0.0)
        at += BLOCK
    tl.store(y + row, tl.sum(sums, axis=1), mask=row < rows)
