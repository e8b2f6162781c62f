"""Skips one call in three.

Reference: matmul
Caught by: comparison with the reference
"""

import os

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        if os.urandom(1)[0] < 85:
            return a.new_zeros(192, 128)
        return a @ b
