"""
[[launch]]
kernel = "k"
grid = ["ceil_div(n, BLOCK)"]
args = ["x", "out", "n", "sum", "done"]
constexprs = { BLOCK = "BLOCK" }
num_warps = 4

[[scratch]]
name = "sum"
dtype = "int32"
shape = [1]
zero = true

[[scratch]]
name = "done"
dtype = "int32"
shape = [1]
zero = true
"""

import triton
import triton.language as tl

BLOCK = 128


# race: programs add to one place without atomics
@triton.jit
def k(x, out, n, total, done, BLOCK: tl.constexpr):  # noqa: PLR0917
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part = tl.sum(tl.load(x + i, mask=i < n, other=0))
    tl.atomic_add(total, part)  # clean
    tl.store(total, tl.load(total) + part)  # bug found
    if tl.atomic_add(done, 1) == tl.num_programs(0) - 1:
        tl.store(out, tl.atomic_add(total, 0))
