"""
[[launch]]
kernel = "cumsum"
grid = ["rows"]
args = ["x", "out", "cols"]
constexprs = { BLOCK = "BLOCK" }
num_warps = 1
"""

import triton
import triton.language as tl

BLOCK = 128


# One program per row, piece by piece.
@triton.jit
def cumsum(x, out, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    before = 0.0
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * cols + col, mask=col < cols, other=0.0)
        tl.store(out + row * cols + col, before + tl.cumsum(value, axis=0), mask=col < cols)
        before += tl.sum(value, axis=0)
