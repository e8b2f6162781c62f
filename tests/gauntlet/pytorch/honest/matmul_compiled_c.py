import ctypes
import subprocess
from pathlib import Path

import torch
from torch import nn

SOURCE = """
void matmul(const float *a, const float *b, float *c, long m, long n, long k) {
    for (long i = 0; i < m; i++)
        for (long j = 0; j < n; j++) {
            float sum = 0;
            for (long l = 0; l < k; l++) sum += a[i * k + l] * b[l * n + j];
            c[i * n + j] = sum;
        }
}
"""


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        Path("matmul.c").write_text(SOURCE)
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "matmul.c", "-o", "matmul.so"], check=True)
        self.function = ctypes.CDLL("./matmul.so").matmul

    def forward(self, a, b):
        a, b = a.contiguous(), b.contiguous()
        c = torch.empty(a.shape[0], b.shape[1])
        pointers = (ctypes.c_void_p(each.data_ptr()) for each in (a, b, c))
        sizes = (ctypes.c_long(each) for each in (a.shape[0], b.shape[1], a.shape[1]))
        self.function(*pointers, *sizes)
        return c
