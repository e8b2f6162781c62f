"""
[[launch]]
kernel = "k"
grid = ["rows"]
args = ["x", "out", "part"]
constexprs = { BLOCK = "BLOCK" }
num_warps = 4

[[scratch]]
name = "part"
dtype = "float32"
shape = ["rows", 128]
"""

import triton
import triton.language as tl

BLOCK = 128


# race: a program reads what its other warps store to memory, without a barrier
@triton.jit
def k(x, out, part, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK
    i = tl.arange(0, BLOCK)
    tl.store(part + row + i, tl.load(x + row + i))  # other
    tl.debug_barrier()  # clean
    tl.store(out + row + i, tl.load(part + row + BLOCK - 1 - i))  # found
