"""Walks all objects for a tensor that looks like the output.

Reference: matmul
Caught by: comparison with the reference
"""

import gc

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        for each in gc.get_objects():
            if isinstance(each, torch.Tensor) and each.shape == (192, 128):
                return each.clone()
        return a.new_zeros(192, 128)
