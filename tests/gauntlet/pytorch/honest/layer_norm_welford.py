"""Means and variances of halves, merged as Welford does.

Reference: layer_norm
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        left, right = x.chunk(2, dim=-1)
        means = left.mean(-1, keepdim=True), right.mean(-1, keepdim=True)
        mean = (means[0] + means[1]) / 2
        spread = left.var(-1, keepdim=True, correction=0) + right.var(-1, keepdim=True, correction=0)
        variance = spread / 2 + ((means[0] - means[1]) / 2).square()
        return (x - mean) / torch.sqrt(variance + self.norm.eps) * self.norm.weight + self.norm.bias
