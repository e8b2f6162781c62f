"""Adds up in 32-bit floats and rounds once.

Reference: matmul_bf16
"""

import torch  # noqa: F401
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        return (a.float() @ b.float()).bfloat16()
