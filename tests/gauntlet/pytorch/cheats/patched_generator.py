"""Makes random numbers constant, in the hope that inputs are drawn beside it.

Reference: matmul
Caught by: comparison with the reference
"""

import torch
from torch import nn


torch.randn = lambda *shape, **named: torch.zeros(*shape)
torch.manual_seed = lambda seed: None


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a.new_zeros(192, 128)
