"""Reads where there is no memory.

Reference: matmul
Caught by: separate process
"""

import ctypes

import torch  # noqa: F401
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        ctypes.string_at(8)
        return a @ b
