"""
[[launch]]
kernel = "layernorm"
grid = ["ceil_div(rows, ROWS)"]
args = ["x", "weight", "bias", "out", "rows", "cols", "eps"]
constexprs = { KIND = "KIND", ROWS = "ROWS", BLOCK = "BLOCK if KIND < 2 else next_pow2(cols)" }
num_warps = 4
num_stages = 2
"""

import triton
import triton.language as tl

KIND = 1
ROWS = 1
BLOCK = 1024


# Several rows a program. Kind 0 reads them three times, kind 1 twice, with a sum of squares, kind 2 once.
@triton.jit
def layernorm(
    x, weight, bias, out, rows, cols, eps, KIND: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    across = tl.arange(0, BLOCK)[None, :]
    if KIND == 2:
        inside = (row < rows) & (across < cols)
        value = tl.load(x + row * cols + across, mask=inside, other=0.0).to(tl.float32)
        mean = tl.sum(value, axis=1, keep_dims=True) / cols
        centred = tl.where(inside, value - mean, 0.0)
        scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=1, keep_dims=True) / cols + eps)
        gain = tl.load(weight + across, mask=across < cols, other=0.0).to(tl.float32)
        shift = tl.load(bias + across, mask=across < cols, other=0.0).to(tl.float32)
        tl.store(out + row * cols + across, centred * scale * gain + shift, mask=inside)
    else:
        sums = tl.zeros([ROWS, BLOCK], tl.float32)
        squares = tl.zeros([ROWS, BLOCK], tl.float32)
        for start in range(0, cols, BLOCK):
            inside = (row < rows) & (start + across < cols)
            value = tl.load(x + row * cols + start + across, mask=inside, other=0.0).to(tl.float32)
            sums += value
            if KIND == 1:
                squares += value * value
        mean = tl.sum(sums, axis=1, keep_dims=True) / cols
        if KIND == 1:
            variance = tl.maximum(tl.sum(squares, axis=1, keep_dims=True) / cols - mean * mean, 0.0)
        else:
            for start in range(0, cols, BLOCK):
                inside = (row < rows) & (start + across < cols)
                value = tl.load(x + row * cols + start + across, mask=inside, other=0.0).to(tl.float32)
                centred = tl.where(inside, value - mean, 0.0)
                squares += centred * centred
            variance = tl.sum(squares, axis=1, keep_dims=True) / cols
        scale = 1.0 / tl.sqrt(variance + eps)
        for start in range(0, cols, BLOCK):
            inside = (row < rows) & (start + across < cols)
            value = tl.load(x + row * cols + start + across, mask=inside, other=0.0).to(tl.float32)
            gain = tl.load(weight + start + across, mask=start + across < cols, other=0.0).to(tl.float32)
            shift = tl.load(bias + start + across, mask=start + across < cols, other=0.0).to(tl.float32)
            tl.store(out + row * cols + start + across, (value - mean) * scale * gain + shift, mask=inside)
