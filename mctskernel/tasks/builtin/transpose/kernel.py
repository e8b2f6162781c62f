"""
[[launch]]
kernel = "transpose"
grid = ["ceil_div(cols, BLOCK_COLS)", "ceil_div(rows, BLOCK_ROWS)"]
args = ["x", "out", "rows", "cols"]
constexprs = { BLOCK_ROWS = "BLOCK_ROWS", BLOCK_COLS = "BLOCK_COLS" }
num_warps = 4
"""

import triton
import triton.language as tl

BLOCK_ROWS = 16
BLOCK_COLS = 16


# One program per tile.
@triton.jit
def transpose(x, out, rows, cols, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr):
    row = tl.program_id(1) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    col = tl.program_id(0) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
    mask = (row < rows) & (col < cols)
    tile = tl.load(x + row * cols + col, mask=mask)
    tl.store(out + col * rows + row, tile, mask=mask)
