"""
[[launch]]
kernel = "softmax"
grid = ["ceil_div(rows, ROWS)"]
args = ["x", "out", "rows", "cols"]
constexprs = { KIND = "KIND", ROWS = "ROWS", BLOCK = "BLOCK if KIND < 2 else next_pow2(cols)" }
num_warps = 4
num_stages = 2
"""

import triton
import triton.language as tl

KIND = 1
ROWS = 1
BLOCK = 1024


# Several rows a program. Kind 0 reads them three times, kind 1 twice, with running sums, kind 2 once, into registers.
@triton.jit
def softmax(x, out, rows, cols, KIND: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    across = tl.arange(0, BLOCK)[None, :]
    if KIND == 2:
        inside = (row < rows) & (across < cols)
        value = tl.load(x + row * cols + across, mask=inside, other=float("-inf"))
        power = tl.exp(value - tl.max(value, axis=1, keep_dims=True))
        total = tl.sum(power, axis=1, keep_dims=True)
        tl.store(out + row * cols + across, power / total, mask=inside)
    else:
        largest = tl.full([ROWS, BLOCK], -3.0e38, tl.float32)
        sums = tl.zeros([ROWS, BLOCK], tl.float32)
        for start in range(0, cols, BLOCK):
            inside = (row < rows) & (start + across < cols)
            value = tl.load(x + row * cols + start + across, mask=inside, other=-3.0e38)
            larger = tl.maximum(largest, value)
            if KIND == 1:
                sums = sums * tl.exp(largest - larger) + tl.where(inside, tl.exp(value - larger), 0.0)
            largest = larger
        top = tl.max(largest, axis=1, keep_dims=True)
        if KIND == 1:
            total = tl.sum(sums * tl.exp(largest - top), axis=1, keep_dims=True)
        else:
            for start in range(0, cols, BLOCK):
                inside = (row < rows) & (start + across < cols)
                value = tl.load(x + row * cols + start + across, mask=inside, other=-3.0e38)
                sums += tl.where(inside, tl.exp(value - top), 0.0)
            total = tl.sum(sums, axis=1, keep_dims=True)
        for start in range(0, cols, BLOCK):
            inside = (row < rows) & (start + across < cols)
            value = tl.load(x + row * cols + start + across, mask=inside, other=-3.0e38)
            tl.store(out + row * cols + start + across, tl.exp(value - top) / total, mask=inside)
