"""Leaves its input alone where it may change it.

Reference: relu_in_place
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.where(x > 0, x, 0.0)
