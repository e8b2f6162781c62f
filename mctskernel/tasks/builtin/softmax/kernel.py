"""
[[launch]]
kernel = "softmax"
grid = ["rows"]
args = ["x", "out", "cols"]
constexprs = { BLOCK = "BLOCK" }
num_warps = 1
"""

import triton
import triton.language as tl

BLOCK = 128


# One program per row, which reads it three times.
@triton.jit
def softmax(x, out, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    largest = float("-inf")
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * cols + col, mask=col < cols, other=float("-inf"))
        largest = tl.maximum(largest, tl.max(value, axis=0))
    total = 0.0
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * cols + col, mask=col < cols, other=float("-inf"))
        total += tl.sum(tl.exp(value - largest), axis=0)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * cols + col, mask=col < cols, other=float("-inf"))
        tl.store(out + row * cols + col, tl.exp(value - largest) / total, mask=col < cols)
