"""A product of two matrices of bfloat16."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, a, b):
        return a @ b


def get_inputs():
    return [torch.randn(128, 256).bfloat16(), torch.randn(256, 64).bfloat16()]


def get_init_inputs():
    return []
