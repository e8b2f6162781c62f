"""
[[launch]]
kernel = "clear"
grid = [1]
args = ["counts"]
constexprs = { BINS = "BINS" }
num_warps = 4

[[launch]]
kernel = "histogram"
grid = ["ceil_div(n, BLOCK)"]
args = ["values", "counts", "n"]
constexprs = { BLOCK = "BLOCK" }
num_warps = 4
"""

import triton
import triton.language as tl

BINS = 256
BLOCK = 128


@triton.jit
def clear(counts, BINS: tl.constexpr):
    tl.store(counts + tl.arange(0, BINS), tl.zeros([BINS], tl.int32))


# An atomic addition to global memory for each value.
@triton.jit
def histogram(values, counts, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(values + i, mask=i < n, other=0).to(tl.int32)
    tl.atomic_add(counts + value, 1, mask=i < n)
