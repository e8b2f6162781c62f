import torch
from torch import nn


class Normalised(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, correction=0)
        return torch.addcmul(bias, (x - mean) * torch.rsqrt(variance + eps), weight)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        return Normalised.apply(x, self.norm.weight, self.norm.bias, self.norm.eps)
