import torch  # noqa: F401
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x.clone()
