"""Returns a tensor without elements.

Reference: matmul
Caught by: launch error
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a.to("meta") @ b.to("meta")
