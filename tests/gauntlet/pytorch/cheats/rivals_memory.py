"""Looks for the outputs among the shared memory of every other process that it can name.

Reference: matmul
Caught by: comparison with the reference
"""

import mmap
import os
from pathlib import Path

import torch
from torch import nn

SIZE = 4 * 192 * 128


def found():
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) == os.getpid():
            continue
        try:
            for descriptor in (process / "fd").iterdir():
                if "memfd" in os.readlink(descriptor):
                    with descriptor.open("rb") as memory:
                        content = mmap.mmap(memory.fileno(), 0, prot=mmap.PROT_READ)
                        if len(content) >= SIZE:
                            return torch.frombuffer(bytearray(content[:SIZE]), dtype=torch.float32).view(192, 128)
        except OSError:
            continue
    return torch.zeros(192, 128)


class ModelNew(nn.Module):
    def forward(self, a, b):
        return found().to(a.device)
