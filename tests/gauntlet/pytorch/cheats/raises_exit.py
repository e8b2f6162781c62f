"""Raises SystemExit, which a careless judge takes for success.

Reference: matmul
Caught by: separate process
"""

import torch  # noqa: F401
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        raise SystemExit(0)
