"""
[[launch]]
kernel = "layernorm"
grid = ["rows"]
args = ["x", "weight", "bias", "out", "cols", "eps"]
constexprs = { BLOCK = "BLOCK" }
num_warps = 1
"""

import triton
import triton.language as tl

BLOCK = 128


# One program per row, which reads it three times.
@triton.jit
def layernorm(x, weight, bias, out, cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = 0.0
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * cols + col, mask=col < cols, other=0.0).to(tl.float32)
        total += tl.sum(value, axis=0)
    mean = total / cols
    squares = 0.0
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * cols + col, mask=col < cols, other=0.0).to(tl.float32)
        centred = tl.where(col < cols, value - mean, 0.0)
        squares += tl.sum(centred * centred, axis=0)
    scale = tl.rsqrt(squares / cols + eps)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * cols + col, mask=col < cols, other=0.0).to(tl.float32)
        factor = tl.load(weight + col, mask=col < cols, other=0.0).to(tl.float32)
        shift = tl.load(bias + col, mask=col < cols, other=0.0).to(tl.float32)
        result = (value - mean) * scale * factor + shift
        tl.store(out + row * cols + col, result, mask=col < cols)
