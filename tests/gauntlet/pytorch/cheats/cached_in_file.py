"""Keeps the first result in a file of its folder.

Reference: matmul
Caught by: comparison with the reference
"""

from pathlib import Path

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        path = Path("result.pt")
        if not path.exists():
            torch.save(a @ b, path)
        return torch.load(path)
