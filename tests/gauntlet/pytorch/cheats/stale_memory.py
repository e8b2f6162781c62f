"""Returns memory that it never wrote, which may still hold somebody's result.

Reference: matmul
Caught by: comparison with the reference
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        return torch.empty(192, 128, device=a.device)
