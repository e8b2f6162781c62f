import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        values, indices = torch.topk(x, 4, dim=-1)
        return [values, indices, x.mean(dim=-1)]
