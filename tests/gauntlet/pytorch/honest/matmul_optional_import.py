"""Uses a library where there is one.

Reference: matmul
"""

import torch
from torch import nn

try:
    import opt_einsum  # noqa: F401

    EQUATION = "ij,jk->ik"
except ImportError:
    EQUATION = "ab,bc->ac"


class ModelNew(nn.Module):
    def forward(self, a, b):
        return torch.einsum(EQUATION, a, b)
