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


# race: programs overlap by one element, which they update in place
@triton.jit
def k(x, out, n, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    i = start + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)
    tl.debug_barrier()
    end = min(start + BLOCK, n)  # clean
    end = min(start + BLOCK + 1, n)  # bug
    for step in range(0, 2 * BLOCK, BLOCK):
        mask = i + step < end
        tl.store(out + i + step, 2 * tl.load(out + i + step, mask=mask), mask=mask)  # found
