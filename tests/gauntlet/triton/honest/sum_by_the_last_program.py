"""
[[launch]]
kernel = "sum"
grid = ["GRID"]
args = ["x", "partial", "arrived", "out", "n"]
constexprs = { GRID = "GRID", BLOCK = 512 }
num_warps = 4

[[scratch]]
name = "partial"
dtype = "float32"
shape = ["GRID"]

[[scratch]]
name = "arrived"
dtype = "int32"
shape = [1]
zero = true
"""

import triton
import triton.language as tl

GRID = 256


# The last program to arrive adds up what all have left.
@triton.jit
def sum(x, partial, arrived, out, n, GRID: tl.constexpr, BLOCK: tl.constexpr):
    sums = tl.zeros([BLOCK], tl.float32)
    for start in range(tl.program_id(0) * BLOCK, n, GRID * BLOCK):
        i = start + tl.arange(0, BLOCK)
        sums += tl.load(x + i, mask=i < n, other=0.0)
    tl.store(partial + tl.program_id(0), tl.sum(sums, axis=0))
    tl.debug_barrier()
    if tl.atomic_add(arrived, 1) == GRID - 1:
        tl.store(out, tl.sum(tl.load(partial + tl.arange(0, GRID), volatile=True), axis=0))
