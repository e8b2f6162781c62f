"""Host code for a kernel and its launch plan: a Python module, or a C++ extension, that needs nothing of mctskernel.

A module needs PyTorch, and Triton or a CUDA toolkit. Its function takes tensors, computes the dimensions from their
shapes, allocates scratch buffers, and launches on PyTorch's current stream.
"""

from __future__ import annotations

from mctskernel.problems.host_code.expressions import HostCodeError
from mctskernel.problems.host_code.module import host_module, host_module_into

__all__ = ["HostCodeError", "host_module", "host_module_into"]
