"""
[[launch]]
kernel = "k"
grid = ["ceil_div(rows * cols, BLOCK)"]
args = ["x", "out", "rows * cols", "part"]
constexprs = { BLOCK = "BLOCK" }
num_warps = 4

[[scratch]]
name = "part"
dtype = "float32"
shape = ["rows * cols"]
"""

import triton
import triton.language as tl

BLOCK = 128


# uninitialised_read: a program reads what only others would have written
@triton.jit
def k(x, out, n, part, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(part + i, tl.load(x + i, mask=i < n), mask=i < n)  # clean
    tl.store(part + i, tl.load(x + i, mask=i < n - 1), mask=i < n - 1)  # bug
    tl.debug_barrier()
    tl.store(out + i, 2 * tl.load(part + i, mask=i < n), mask=i < n)  # found
