"""
[[launch]]
kernel = "bias_gelu"
grid = ["ceil_div(cols, BLOCK)", "rows"]
args = ["x", "bias", "out", "cols"]
constexprs = { BLOCK = "BLOCK" }
num_warps = 4
"""

import triton
import triton.language as tl

BLOCK = 128


# One program per piece of a row, one element per thread.
@triton.jit
def bias_gelu(x, bias, out, cols, BLOCK: tl.constexpr):
    row = tl.program_id(1)
    col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + row * cols + col, mask=col < cols).to(tl.float32)
    biased = value + tl.load(bias + col, mask=col < cols).to(tl.float32)
    inner = 0.7978845608028654 * (biased + 0.044715 * biased * biased * biased)
    tanh = 1.0 - 2.0 / (tl.exp(2.0 * inner) + 1.0)
    tl.store(out + row * cols + col, 0.5 * biased * (1.0 + tanh), mask=col < cols)
