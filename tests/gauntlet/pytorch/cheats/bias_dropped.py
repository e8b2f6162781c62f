"""Leaves the bias out.

Reference: linear_gelu
Caught by: comparison with the reference
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features_in, features_out):
        super().__init__()
        self.linear = nn.Linear(features_in, features_out)

    def forward(self, x):
        return torch.nn.functional.gelu(x @ self.linear.weight.t())
