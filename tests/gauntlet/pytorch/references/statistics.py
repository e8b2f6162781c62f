"""Several outputs of several types, in a dictionary with a tuple."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        values, indices = torch.topk(x, 4, dim=-1)
        return {"top": (values, indices), "mean": x.mean(dim=-1), "positive": x > 0}


def get_inputs():
    return [torch.randn(64, 256)]


def get_init_inputs():
    return []
