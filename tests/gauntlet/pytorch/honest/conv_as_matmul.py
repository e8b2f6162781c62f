"""The convolution as a product with unfolded patches.

Reference: conv_bn_relu
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels_in, channels_out):
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, 3, padding=1)
        self.bn = nn.BatchNorm2d(channels_out)

    def forward(self, x):
        patches = torch.nn.functional.unfold(x, 3, padding=1)
        weight = self.conv.weight.flatten(1)
        found = (weight @ patches + self.conv.bias[:, None]).unflatten(-1, x.shape[-2:])
        mean = found.mean(dim=(0, 2, 3), keepdim=True)
        variance = found.var(dim=(0, 2, 3), keepdim=True, correction=0)
        scale = self.bn.weight[None, :, None, None] * torch.rsqrt(variance + self.bn.eps)
        return torch.relu((found - mean) * scale + self.bn.bias[None, :, None, None])
