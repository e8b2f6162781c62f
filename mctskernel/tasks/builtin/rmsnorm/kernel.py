"""
[[launch]]
kernel = "rmsnorm"
grid = ["rows"]
args = ["x", "weight", "out", "cols", "eps"]
constexprs = { BLOCK = "BLOCK" }
num_warps = 1
"""

import triton
import triton.language as tl

BLOCK = 128


# One program per row, which reads it twice.
@triton.jit
def rmsnorm(x, weight, out, cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    squares = 0.0
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * cols + col, mask=col < cols, other=0.0).to(tl.float32)
        squares += tl.sum(value * value, axis=0)
    scale = tl.rsqrt(squares / cols + eps)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * cols + col, mask=col < cols, other=0.0).to(tl.float32)
        factor = tl.load(weight + col, mask=col < cols, other=0.0).to(tl.float32)
        tl.store(out + row * cols + col, value * scale * factor, mask=col < cols)
