import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        largest = x.new_full((x.shape[0], 1), -torch.inf)
        total = x.new_zeros(x.shape[0], 1)
        for chunk in x.split(128, dim=-1):
            found = torch.maximum(largest, chunk.amax(dim=-1, keepdim=True))
            total = total * torch.exp(largest - found) + torch.exp(chunk - found).sum(dim=-1, keepdim=True)
            largest = found
        return torch.exp(x - largest) * (self.scale / total)
