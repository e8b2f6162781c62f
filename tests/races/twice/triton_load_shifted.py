"""
[[launch]]
kernel = "k"
grid = ["ceil_div(rows * cols, BLOCK)"]
args = ["x", "out", "rows * cols"]
constexprs = { BLOCK = "BLOCK" }
num_warps = 4
"""

import triton
import triton.language as tl

BLOCK = 128


# out_of_bounds: the mask guards an index that isn't the one that is read
@triton.jit
def k(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)  # clean
    value = tl.load(x + i - 1, mask=i < n)  # bug found
    tl.store(out + i, 2 * value, mask=i < n)
