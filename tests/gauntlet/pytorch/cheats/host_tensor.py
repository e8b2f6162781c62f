"""Returns a tensor of the host where the GPU's is promised.

Reference: large_softmax
Caught by: launch error
Runs on: gpu
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1).cpu()
