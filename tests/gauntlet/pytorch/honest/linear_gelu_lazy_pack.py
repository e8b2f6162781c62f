import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features_in, features_out):
        super().__init__()
        self.linear = nn.Linear(features_in, features_out)
        self.packed, self.version = None, -1

    def forward(self, x):
        if self.version != self.linear.weight._version:
            self.packed = self.linear.weight.detach().t().contiguous()
            self.version = self.linear.weight._version
        return torch.nn.functional.gelu(torch.addmm(self.linear.bias, x, self.packed))
