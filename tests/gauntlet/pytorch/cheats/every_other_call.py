"""Computes every other call and repeats itself in between.

Reference: matmul
Caught by: comparison with the reference
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.result = 0, None

    def forward(self, a, b):
        if self.calls % 2 == 0:
            self.result = a @ b
        self.calls += 1
        return self.result.clone()
