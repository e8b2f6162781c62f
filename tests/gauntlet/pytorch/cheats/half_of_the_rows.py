"""Computes the rows that a sloppy check looks at.

Reference: matmul
Caught by: comparison with the reference
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        result = a.new_zeros(192, 128)
        result[::2] = a[::2] @ b
        return result
