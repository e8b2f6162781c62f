"""
[[launch]]
kernel = "sum_blocks"
grid = ["ceil_div(n, BLOCK)"]
args = ["x", "partial", "n"]
constexprs = { BLOCK = "BLOCK" }
num_warps = 4

[[launch]]
kernel = "sum_partials"
grid = [1]
args = ["partial", "out", "ceil_div(n, BLOCK)"]
constexprs = { BLOCK = "BLOCK" }
num_warps = 4

[[scratch]]
name = "partial"
dtype = "float32"
shape = ["ceil_div(n, BLOCK)"]
"""

import triton
import triton.language as tl

BLOCK = 256


# Each program adds BLOCK elements.
@triton.jit
def sum_blocks(x, partial, n, BLOCK: tl.constexpr):
    block = tl.program_id(0)
    i = block * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n, other=0.0)
    tl.store(partial + block, tl.sum(value, axis=0))


# One program adds what the others left.
@triton.jit
def sum_partials(partial, out, count, BLOCK: tl.constexpr):
    total = 0.0
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        value = tl.load(partial + i, mask=i < count, other=0.0)
        total += tl.sum(value, axis=0)
    tl.store(out, total)
