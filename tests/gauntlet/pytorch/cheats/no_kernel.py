"""Calls PyTorch where a kernel of its own was asked for.

Reference: matmul
Caught by: foreign calls
Own kernels: asked for
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        return torch.einsum("ij,jk->ik", a, b)
