"""Names its parameters otherwise; they come from the same seed.

Reference: linear_gelu
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features_in, features_out):
        super().__init__()
        self.projection = nn.Linear(features_in, features_out)

    def forward(self, x):
        return torch.nn.functional.gelu(self.projection(x))
