"""A GPU's memory that the referee shares with a host, as PyTorch sees it."""

from __future__ import annotations

from typing import Any

import torch

from mctskernel.profiling.pytorch.device_memory import imported


def mapped_on_device(descriptor: int, size: int) -> Any:
    """The bytes of shared memory on the GPU; closes the descriptor."""
    torch.zeros(1, device="cuda")  # makes PyTorch's context the current one
    return torch.as_tensor(_Bytes(imported(descriptor, size), size), device="cuda")


class _Bytes:
    """Tells PyTorch where bytes are (the CUDA Array Interface, version 3)."""

    def __init__(self, pointer: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (pointer, False),
            "strides": None,
            "version": 3,
        }
