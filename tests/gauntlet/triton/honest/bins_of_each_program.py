"""
[[launch]]
kernel = "count"
grid = ["min(264, ceil_div(n, BLOCK))"]
args = ["values", "parts", "n"]
constexprs = { BLOCK = "BLOCK" }
num_warps = 4

[[launch]]
kernel = "add_up"
grid = [16]
args = ["parts", "counts", "min(264, ceil_div(n, BLOCK))"]
constexprs = { BINS = 16 }
num_warps = 1

[[scratch]]
name = "parts"
dtype = "int32"
shape = ["min(264, ceil_div(n, BLOCK))", 256]
"""

import triton
import triton.language as tl

BLOCK = 1024


# Histograms of whole tiles, kept in registers, into scratch; a second launch adds them up.
@triton.jit
def count(values, parts, n, BLOCK: tl.constexpr):
    bins = tl.zeros([256], tl.int32)
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        i = start + tl.arange(0, BLOCK)
        value = tl.load(values + i, mask=i < n, other=0).to(tl.int32)
        bins += tl.histogram(value, 256, mask=i < n)
    tl.store(parts + tl.program_id(0) * 256 + tl.arange(0, 256), bins)


@triton.jit
def add_up(parts, counts, programs, BINS: tl.constexpr):
    place = tl.program_id(0) * BINS + tl.arange(0, BINS)
    total = tl.zeros([BINS], tl.int32)
    for program in range(programs):
        total += tl.load(parts + program * 256 + place)
    tl.store(counts + place, total)
