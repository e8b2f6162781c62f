"""Host code for a kernel and its launch plan: a Python module, or a C++ extension, that needs nothing of mctskernel.

A module needs PyTorch, and Triton or a CUDA toolkit. Its function takes tensors, finds the dimensions from their
shapes, allocates outputs and scratch buffers, and launches on PyTorch's current stream.
"""

from __future__ import annotations

from mctskernel.problems.host_code.expressions import HostCodeError
from mctskernel.problems.host_code.module import dimensions_of_inputs, host_module, torch_operator

__all__ = ["HostCodeError", "dimensions_of_inputs", "host_module", "torch_operator"]
