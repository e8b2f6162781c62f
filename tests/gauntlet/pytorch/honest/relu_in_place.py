"""Changes its input, as its contract says.

Reference: relu_in_place
"""

import torch  # noqa: F401
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x.clamp_(min=0)
