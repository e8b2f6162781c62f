"""
[[launch]]
kernel = "matmul"
grid = ["ceil_div(M, 32) * ceil_div(N, 32)"]
args = ["a", "b", "c", "M", "N", "K"]
constexprs = { BLOCK = 32, GROUP = 4 }
num_warps = 4
num_stages = 2
"""

import triton
import triton.language as tl


# Block pointers with their own checks of bounds, tiles in groups for the L2 cache, and no TF32 in the product.
@triton.jit
def matmul(a, b, c, M, N, K, BLOCK: tl.constexpr, GROUP: tl.constexpr):
    down = tl.cdiv(M, BLOCK)
    across = tl.cdiv(N, BLOCK)
    tile = tl.program_id(0)
    i, j = tl.swizzle2d(tile // across, tile % across, down, across, GROUP)
    left = tl.make_block_ptr(a, (M, K), (K, 1), (i * BLOCK, 0), (BLOCK, 16), (1, 0))
    right = tl.make_block_ptr(b, (K, N), (N, 1), (0, j * BLOCK), (16, BLOCK), (1, 0))
    product = tl.zeros([BLOCK, BLOCK], tl.float32)
    for _ in range(0, K, 16):
        x = tl.load(left, boundary_check=(0, 1), padding_option="zero")
        y = tl.load(right, boundary_check=(0, 1), padding_option="zero")
        product = tl.dot(x, y, product, input_precision="ieee")
        left = tl.advance(left, (0, 16))
        right = tl.advance(right, (16, 0))
    to = tl.make_block_ptr(c, (M, N), (N, 1), (i * BLOCK, j * BLOCK), (BLOCK, BLOCK), (1, 0))
    tl.store(to, product, boundary_check=(0, 1))
