"""
[[launch]]
kernel = "transpose"
grid = ["ceil_div(cols, 32)", "ceil_div(rows, 64)"]
args = ["x", "out", "rows", "cols"]
constexprs = { ROWS = 64, COLS = 32 }
num_warps = 8
"""

import triton
import triton.language as tl


# Tiles that aren't square, turned by tl.trans.
@triton.jit
def transpose(x, out, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)
    there = (row < rows)[:, None] & (col < cols)[None, :]
    tile = tl.load(x + row[:, None] * cols + col[None, :], mask=there)
    tl.store(out + col[:, None] * rows + row[None, :], tl.trans(tile), mask=tl.trans(there))
