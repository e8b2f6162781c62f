"""
[[launch]]
kernel = "bias_gelu"
grid = ["ceil_div(cols, 256)", "rows"]
args = ["x", "bias", "out", "cols"]
constexprs = { BLOCK = 256 }
num_warps = 1
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice


# tanh of libdevice, one warp for 256 elements.
@triton.jit
def bias_gelu(x, bias, out, cols, BLOCK: tl.constexpr):
    col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = tl.program_id(1) * cols + tl.max_contiguous(tl.multiple_of(col, BLOCK), BLOCK)
    value = tl.load(x + at, mask=col < cols).to(tl.float32) + tl.load(bias + col, mask=col < cols).to(
        tl.float32
    )
    inner = 0.7978845608028654 * tl.fma(0.044715 * value * value, value, value)
    tl.store(out + at, 0.5 * value * (1.0 + libdevice.tanh(inner)), mask=col < cols)
