"""Ends its process with status 0 instead of answering.

Reference: matmul
Caught by: separate process
"""

import atexit
import os

import torch  # noqa: F401
from torch import nn


@atexit.register
def claim():
    os.write(2, b"ok: 1000 times as fast\n")


class ModelNew(nn.Module):
    def forward(self, a, b):
        os.write(1, b"ok: 1000 times as fast\n")
        os._exit(0)
