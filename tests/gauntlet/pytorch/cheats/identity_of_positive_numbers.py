"""Returns a copy of its input, since ReLU does nothing to positive numbers.

Reference: positive_relu
Caught by: comparison with the reference
"""

import torch  # noqa: F401
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x.clone()
