"""
[[launch]]
kernel = "softmax"
grid = ["rows"]
args = ["x", "out", "cols"]
constexprs = { BLOCK = "1 << 30" }
"""

import triton
import triton.language as tl


@triton.jit
def softmax(x, out, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0) * cols
    col = tl.arange(0, BLOCK)
    value = tl.load(x + row + col, mask=col < cols, other=float("-inf"))
    e = tl.exp(value - tl.max(value, axis=0))
    tl.store(out + row + col, e / tl.sum(e, axis=0), mask=col < cols)
