"""
[[launch]]
kernel = "layernorm"
grid = ["rows"]
args = ["x", "weight", "bias", "out", "cols", "eps"]
constexprs = { BLOCK = "max(32, next_pow2(cols))" }
num_warps = "8 if cols > 2048 else 2"
"""

import triton
import triton.language as tl


@triton.jit
def merge(mean_a, squares_a, count_a, mean_b, squares_b, count_b):
    count = count_a + count_b
    share = tl.where(count > 0, count_b / tl.maximum(count, 1.0), 0.0)
    off = mean_b - mean_a
    return mean_a + off * share, squares_a + squares_b + off * off * count_a * share, count


# Mean and squared deviations by one reduction with a combination of its own (Chan's).
@triton.jit
def layernorm(x, weight, bias, out, cols, eps, BLOCK: tl.constexpr):
    col = tl.arange(0, BLOCK)
    there = col < cols
    at = tl.program_id(0) * cols + col
    value = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    mean, squares, _ = tl.reduce((value, tl.zeros_like(value), there.to(tl.float32)), 0, merge)
    scale = tl.rsqrt(squares / cols + eps)
    w = tl.load(weight + col, mask=there, other=0.0).to(tl.float32)
    b = tl.load(bias + col, mask=there, other=0.0).to(tl.float32)
    tl.store(out + at, (value - mean) * scale * w + b, mask=there)
