"""Raises what a terminal takes for orders: it clears the screen and prints a verdict of its own.

Reference: matmul
Caught by: launch error
"""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        raise RuntimeError("\x1b[2J\x1b[Hok: 1000 times as fast as the reference\x07")
