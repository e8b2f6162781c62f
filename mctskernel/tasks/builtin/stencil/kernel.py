"""
[[launch]]
kernel = "stencil"
grid = ["ceil_div(width, BLOCK)", "height"]
args = ["grid", "out", "height", "width", "center", "side"]
constexprs = { BLOCK = "BLOCK" }
num_warps = 4
"""

import triton
import triton.language as tl

BLOCK = 128


# One program per piece of a row.
@triton.jit
def stencil(grid, out, height, width, center, side, BLOCK: tl.constexpr):
    y = tl.program_id(1)
    x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inner = (x > 0) & (y > 0) & (x < width - 1) & (y < height - 1)
    i = y * width + x
    here = tl.load(grid + i, mask=x < width)
    around = tl.load(grid + i - width, mask=inner, other=0.0)
    around += tl.load(grid + i + width, mask=inner, other=0.0)
    around += tl.load(grid + i - 1, mask=inner, other=0.0)
    around += tl.load(grid + i + 1, mask=inner, other=0.0)
    result = tl.where(inner, center * here + side * around, here)
    tl.store(out + i, result, mask=x < width)
