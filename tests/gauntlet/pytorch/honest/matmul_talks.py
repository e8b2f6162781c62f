import warnings

import torch  # noqa: F401
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        print("multiplying", a.shape, b.shape)
        warnings.warn("this is slow", stacklevel=2)
        return a @ b
