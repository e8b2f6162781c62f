"""
[[launch]]
kernel = "conv3x3"
grid = ["ceil_div(height * width, 64)", "ceil_div(filters, 32)", "images"]
args = ["x", "weight", "out", "channels", "filters", "height", "width"]
constexprs = { PIXELS = 64, FILTERS = 32, CHANNELS = 32 }
num_warps = 4
num_stages = 1
"""

import triton
import triton.language as tl


# Nine taps by static ranges, each a product over the channels; pixels of a plane in one dimension.
@triton.jit
def conv3x3(
    x,
    weight,
    out,
    channels,
    filters,
    height,
    width,
    PIXELS: tl.constexpr,
    FILTERS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    at = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)[None, :]
    of = tl.program_id(1) * FILTERS + tl.arange(0, FILTERS)[:, None]
    area = height * width
    image = tl.program_id(2) * channels * area
    row = at // width
    col = at % width
    total = tl.zeros([FILTERS, PIXELS], tl.float32)
    for first in range(0, channels, CHANNELS):
        down = first + tl.arange(0, CHANNELS)[:, None]
        across = first + tl.arange(0, CHANNELS)[None, :]
        for i in tl.static_range(-1, 2):
            for j in tl.static_range(-1, 2):
                inside = (row + i >= 0) & (row + i < height) & (col + j >= 0) & (col + j < width)
                value = tl.load(
                    x + image + down * area + at + i * width + j, mask=inside & (down < channels), other=0.0
                )
                tap = tl.load(
                    weight + (of * channels + across) * 9 + (i + 1) * 3 + j + 1,
                    mask=(of < filters) & (across < channels),
                    other=0.0,
                )
                total = tl.dot(tap, value, total)
    tl.store(out + (tl.program_id(2) * filters + of) * area + at, total, mask=(of < filters) & (at < area))
