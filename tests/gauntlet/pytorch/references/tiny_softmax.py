"""Softmax, scaled so that every output is tiny."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return torch.softmax(x, dim=-1) * self.scale


def get_inputs():
    return [torch.rand(64, 1024)]


def get_init_inputs():
    return [1e-6]
