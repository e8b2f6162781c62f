import torch  # noqa: F401
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        values, indices = x.sort(dim=-1, descending=True)
        mean = x.sum(dim=-1) / x.shape[-1]
        return {"top": (values[:, :4], indices[:, :4]), "mean": mean, "positive": ~(x <= 0)}
