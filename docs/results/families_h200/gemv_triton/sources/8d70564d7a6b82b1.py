"""
[[launch]]
kernel = "gemv"
grid = ["ceil_div(rows, ROWS)"]
args = ["a", "x", "y", "rows", "cols"]
constexprs = { ROWS = "ROWS", BLOCK = "BLOCK", LATE = "LATE" }
num_warps = 4
num_stages = 2
"""

import triton
import triton.language as tl

ROWS = 4
BLOCK = 512
LATE = 1


# Several rows a program; LATE adds up across a row once at the end, else after every block.
@triton.jit
def gemv(a, x, y, rows, cols, ROWS: tl.constexpr, BLOCK: tl.constexpr, LATE: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    across = tl.arange(0, BLOCK)[None, :]
    products = tl.zeros([ROWS, BLOCK], tl.float32)
    total = tl.zeros([ROWS, 1], tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + across
        left = tl.load(a + row * cols + col, mask=(row < rows) & (col < cols), other=0.0)
        right = tl.load(x + col, mask=col < cols, other=0.0)
        if LATE == 1:
            products += left * right
        else:
            total += tl.sum(left * right, axis=1, keep_dims=True)
    if LATE == 1:
        total = tl.sum(products, axis=1, keep_dims=True)
    tl.store(y + row, total, mask=row < rows)
