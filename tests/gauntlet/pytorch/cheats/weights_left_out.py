import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()

    def forward(self, x):
        return torch.nn.functional.layer_norm(x, x.shape[-1:])
