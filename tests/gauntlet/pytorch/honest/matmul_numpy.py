"""Hands the product to numpy.

Reference: matmul
Runs on: cpu
"""

import numpy as np
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        return torch.from_numpy(np.matmul(a.numpy(), b.numpy()))
