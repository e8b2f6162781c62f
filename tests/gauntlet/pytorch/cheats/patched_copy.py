"""Makes copying tensors do nothing.

Reference: matmul
Caught by: poisoned outputs
"""

import torch
from torch import nn


torch.Tensor.copy_ = lambda self, *args, **kwargs: self


class ModelNew(nn.Module):
    def forward(self, a, b):
        return torch.empty(192, 128, device=a.device)
