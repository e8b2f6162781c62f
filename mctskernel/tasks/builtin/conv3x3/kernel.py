"""
[[launch]]
kernel = "conv3x3"
grid = ["ceil_div(height * width, BLOCK_P)", "ceil_div(filters, BLOCK_F)", "images"]
args = ["x", "weight", "out", "channels", "filters", "height", "width"]
constexprs = { BLOCK_F = "BLOCK_F", BLOCK_P = "BLOCK_P", BLOCK_K = "BLOCK_K" }
num_warps = 4
num_stages = 1
"""

import triton
import triton.language as tl

BLOCK_F = 16
BLOCK_P = 16
BLOCK_K = 16


# A product of matrices, filters by weights and weights by pixels, whose second one is gathered from the image.
@triton.jit
def conv3x3(
    x,
    weight,
    out,
    channels,
    filters,
    height,
    width,
    BLOCK_F: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    image = tl.program_id(2)
    filter = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)[:, None]
    pixel = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)[None, :]
    row = pixel // width
    col = pixel % width
    total = tl.zeros([BLOCK_F, BLOCK_P], tl.float32)
    for start in range(0, channels * 9, BLOCK_K):
        across = start + tl.arange(0, BLOCK_K)[None, :]
        down = start + tl.arange(0, BLOCK_K)[:, None]
        y = row + down % 9 // 3 - 1
        z = col + down % 3 - 1
        inside = (y >= 0) & (y < height) & (z >= 0) & (z < width) & (down < channels * 9)
        place = ((image * channels + down // 9) * height + y) * width + z
        left = tl.load(
            weight + filter * channels * 9 + across,
            mask=(filter < filters) & (across < channels * 9),
            other=0.0,
        )
        right = tl.load(x + place, mask=inside, other=0.0)
        total = tl.dot(left, right, total)
    place = (image * filters + filter) * height * width + pixel
    tl.store(out + place, total, mask=(filter < filters) & (pixel < height * width))
