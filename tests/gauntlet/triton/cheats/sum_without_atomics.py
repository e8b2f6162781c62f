"""
[[launch]]
kernel = "clear"
grid = [1]
args = ["out"]

[[launch]]
kernel = "add_up"
grid = ["ceil_div(n, 1024)"]
args = ["x", "out", "n"]
"""

import triton
import triton.language as tl


@triton.jit
def clear(out):
    tl.store(out, 0.0)


@triton.jit
def add_up(x, out, n):
    i = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    part = tl.sum(tl.load(x + i, mask=i < n, other=0.0), axis=0)
    tl.store(out, tl.load(out) + part)
