from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        result = a.new_empty(a.shape[0], b.shape[1])
        middle = a.shape[0] // 2
        parts = (slice(0, middle), slice(middle, None))

        def work(part):
            with torch.no_grad():
                torch.mm(a[part], b, out=result[part])

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(work, parts))
        return result
