"""Several launches of PyTorch's own.

Reference: large_softmax
Runs on: gpu
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        exponentials = torch.exp(x - x.amax(dim=-1, keepdim=True))
        return exponentials / exponentials.sum(dim=-1, keepdim=True)
