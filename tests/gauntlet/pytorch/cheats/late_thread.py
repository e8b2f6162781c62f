"""Returns at once; a thread fills the output later.

Reference: matmul
Caught by: comparison with the reference
"""

import threading
import time

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        out = a.new_zeros(192, 128)

        def work():
            time.sleep(0.05)
            torch.matmul(a, b, out=out)

        threading.Thread(target=work, daemon=True).start()
        return out
