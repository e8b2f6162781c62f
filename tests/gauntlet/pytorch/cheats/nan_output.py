"""Returns NaN, which compares as no larger than any tolerance.

Reference: matmul
Caught by: comparison with the reference
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a.new_full((192, 128), float("nan"))
