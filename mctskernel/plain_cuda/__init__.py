"""Plain CUDA C++ for a function of PyTorch: a kernel for each operator, a thread for each element of its result."""

from mctskernel.plain_cuda.error import PlainCudaError
from mctskernel.plain_cuda.source import kernel_source

__all__ = ["PlainCudaError", "kernel_source"]
