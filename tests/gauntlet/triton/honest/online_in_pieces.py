"""
[[launch]]
kernel = "softmax"
grid = ["rows"]
args = ["x", "out", "cols"]
constexprs = { BLOCK = 256 }
num_warps = 2
"""

import triton
import triton.language as tl


# Online softmax over pieces of a row, in powers of two.
@triton.jit
def softmax(x, out, cols, BLOCK: tl.constexpr):
    base = tl.program_id(0).to(tl.int64) * cols
    largest = float("-inf")
    total = 0.0
    for start in tl.range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        value = tl.load(x + base + col, mask=col < cols, other=float("-inf")) * 1.4426950408889634
        higher = tl.maximum(largest, tl.max(value, axis=0))
        total = total * tl.exp2(largest - higher) + tl.sum(tl.exp2(value - higher), axis=0)
        largest = higher
    for start in tl.range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        value = tl.load(x + base + col, mask=col < cols) * 1.4426950408889634
        tl.store(out + base + col, tl.exp2(value - largest) / total, mask=col < cols, cache_modifier=".cs")
