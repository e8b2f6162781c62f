"""Defines a kernel, and never launches it.

Reference: matmul
Caught by: foreign calls
Own kernels: asked for
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def matmul_kernel(a, b, out, size: tl.constexpr):
    tl.store(out, tl.load(a) + tl.load(b))


class ModelNew(nn.Module):
    def forward(self, a, b):
        return torch.matmul(a, b)
