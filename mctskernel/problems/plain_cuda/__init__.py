"""Plain CUDA C++ for a PyTorch function: a kernel for each operator, a thread for each element of its result."""

from __future__ import annotations

from mctskernel.core.task import TaskError


class PlainCudaError(TaskError):
    """A function that isn't supported; the message names the operator."""
