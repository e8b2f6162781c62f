"""Kernels as Python modules that stand alone: the host code that a launch plan spares its kernel.

Such a module needs PyTorch, and Triton or a CUDA toolkit, and nothing of ours. Its function takes tensors, works out
the dimensions from their shapes, makes the scratch buffers, and launches as the plan says, on PyTorch's current
stream.
"""

from __future__ import annotations

from mctskernel.host_code.errors import HostCodeError
from mctskernel.host_code.module import host_module, host_module_into

__all__ = ["HostCodeError", "host_module", "host_module_into"]
