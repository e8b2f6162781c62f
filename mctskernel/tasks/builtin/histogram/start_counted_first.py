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
BLOCK = 2048


@triton.jit
def clear(counts, BINS: tl.constexpr):
    tl.store(counts + tl.arange(0, BINS), tl.zeros([BINS], tl.int32))


# Each program counts its own values, and adds each of the counts once.
@triton.jit
def histogram(values, counts, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(values + i, mask=i < n, other=0).to(tl.int32)
    tl.atomic_add(counts + tl.arange(0, 256), tl.histogram(value, 256, mask=i < n))
