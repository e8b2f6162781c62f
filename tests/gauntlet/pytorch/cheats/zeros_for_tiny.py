"""Returns zeros, which an absolute tolerance takes for tiny outputs.

Reference: tiny_softmax
Caught by: comparison with the reference
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()

    def forward(self, x):
        return torch.zeros_like(x)
