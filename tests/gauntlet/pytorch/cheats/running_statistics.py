"""Normalises by running statistics instead of those of the batch.

Reference: conv_bn_relu
Caught by: comparison with the reference
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels_in, channels_out):
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, 3, padding=1)
        self.bn = nn.BatchNorm2d(channels_out)
        self.eval()

    def forward(self, x):
        return torch.relu(self.bn(self.conv(x)))
