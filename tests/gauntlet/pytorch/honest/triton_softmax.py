import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def softmax_kernel(x, out, columns, size: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, size)
    inside = offsets < columns
    values = tl.load(x + row * columns + offsets, mask=inside, other=float("-inf"))
    exponentials = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * columns + offsets, exponentials / tl.sum(exponentials, axis=0), mask=inside)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        rows, columns = x.shape
        softmax_kernel[(rows,)](x, out, columns, size=triton.next_power_of_2(columns), num_warps=8)
        return out
