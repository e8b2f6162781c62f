"""Computes in 16 bits where 32-bit floats are promised.

Reference: large_matmul
Caught by: comparison with the reference
Runs on: gpu
"""

import torch  # noqa: F401
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        return (a.half() @ b.half()).float()
