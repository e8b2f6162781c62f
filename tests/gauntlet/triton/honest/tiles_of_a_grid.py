"""
[[launch]]
kernel = "stencil"
grid = ["ceil_div(width, 64)", "ceil_div(height, 8)"]
args = ["grid", "out", "height", "width", "center", "side"]
constexprs = { ROWS = 8, COLS = 64 }
num_warps = 4
"""

import triton
import triton.language as tl


# Five masked loads of the same tile, and a choice between the border and the inside.
@triton.jit
def stencil(grid, out, height, width, center, side, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)[None, :]
    there = (row < height) & (col < width)
    inside = (row > 0) & (row < height - 1) & (col > 0) & (col < width - 1)
    at = row * width + col
    here = tl.load(grid + at, mask=there)
    above = tl.load(grid + at - width, mask=inside, other=0.0)
    below = tl.load(grid + at + width, mask=inside, other=0.0)
    left = tl.load(grid + at - 1, mask=inside, other=0.0)
    right = tl.load(grid + at + 1, mask=inside, other=0.0)
    tl.store(
        out + at, tl.where(inside, center * here + side * (above + below + left + right), here), mask=there
    )
