"""The weights are transposed once, when the module is made.

Reference: linear_gelu
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features_in, features_out):
        super().__init__()
        self.linear = nn.Linear(features_in, features_out)
        self.register_buffer("packed", self.linear.weight.detach().t().contiguous(), persistent=False)

    def forward(self, x):
        return torch.nn.functional.gelu(torch.addmm(self.linear.bias, x, self.packed))
