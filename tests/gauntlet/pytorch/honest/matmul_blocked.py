from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        result = a.new_zeros(a.shape[0], b.shape[1])
        for start in reversed(range(0, a.shape[1], 32)):
            result += a[:, start : start + 32] @ b[start : start + 32]
        return result
