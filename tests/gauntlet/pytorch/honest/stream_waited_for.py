import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.stream = torch.cuda.Stream()

    def forward(self, a, b):
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            result = a @ b
        torch.cuda.current_stream().wait_stream(self.stream)
        result.record_stream(torch.cuda.current_stream())
        return result
