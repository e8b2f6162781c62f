"""
[[launch]]
kernel = "cross_entropy"
grid = ["rows"]
args = ["logits", "targets", "loss", "cols"]
constexprs = { BLOCK = "BLOCK" }
num_warps = 1
"""

import triton
import triton.language as tl

BLOCK = 128


# One program per row, which reads it twice.
@triton.jit
def cross_entropy(logits, targets, loss, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    largest = float("-inf")
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        value = tl.load(logits + row * cols + col, mask=col < cols, other=float("-inf")).to(tl.float32)
        largest = tl.maximum(largest, tl.max(value, axis=0))
    total = 0.0
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        value = tl.load(logits + row * cols + col, mask=col < cols, other=float("-inf")).to(tl.float32)
        total += tl.sum(tl.exp(value - largest), axis=0)
    chosen = tl.load(logits + row * cols + tl.load(targets + row)).to(tl.float32)
    tl.store(loss + row, tl.log(total) + (largest - chosen))
