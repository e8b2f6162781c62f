"""Sends the evaluator an evaluation of its own.

Reference: matmul
Caught by: separate process
"""

import os
import socket
import struct

import msgspec
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        verdict = {"type": "Evaluated", "evaluation": {"outcome": "ok", "source": "measured", "timings": []}}
        message = msgspec.msgpack.encode(verdict)
        for name in os.listdir("/proc/self/fd"):
            try:
                socket.socket(fileno=os.dup(int(name))).send(struct.pack("<Q", len(message)) + message)
            except OSError:
                continue
        return torch.zeros(192, 128)
