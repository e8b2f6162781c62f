"""
[[launch]]
kernel = "cross_entropy"
grid = ["rows"]
args = ["logits", "targets", "loss", "cols"]
constexprs = { BLOCK = 2048 }
num_warps = 16
"""

import triton
import triton.language as tl


# Programs of sixteen warps; every lane keeps its own largest value and sum until the end.
@triton.jit
def cross_entropy(logits, targets, loss, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    largest = tl.full([BLOCK], -1.0e30, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        value = tl.load(logits + row * cols + col, mask=col < cols, other=-1.0e30).to(tl.float32)
        higher = tl.maximum(largest, value)
        total = total * tl.exp(largest - higher) + tl.where(col < cols, tl.exp(value - higher), 0.0)
        largest = higher
    top = tl.max(largest, axis=0)
    whole = tl.sum(total * tl.exp(largest - top), axis=0)
    chosen = tl.load(logits + row * cols + tl.load(targets + row)).to(tl.float32)
    tl.store(loss + row, tl.log(whole) + (top - chosen))
