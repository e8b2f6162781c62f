"""Plain CUDA C++ for a PyTorch function: a kernel for each operator, a thread for each element of its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mctskernel.core.task import Shape, TaskError, Tensor


class PlainCudaError(TaskError):
    """A function that isn't supported; the message names the operator."""


class Sources(NamedTuple):
    """Texts of a kernel.cu: the plain one, and one with templates, empty where none applies."""

    plain: str
    templates: str


def kernel_sources(
    function: Callable[..., Any],
    inputs: Sequence[Tensor],
    outputs: Sequence[str],
    sizes: Shape,
    typical: Shape | None = None,
) -> Sources:
    """Kernels with their launch plans, which compute a function at any sizes of the dimensions.

    `function` takes tensors in the order of `inputs` and returns as many as `outputs` has names. `sizes` has a
    size of each dimension, above 1 and all different; kernels are made for `typical` ones, if they are others. Raises
    PlainCudaError.
    """
    from mctskernel.problems.plain_cuda.schedule import written  # noqa: PLC0415 - imports PyTorch, an extra

    return written(function, inputs, outputs, sizes, typical)
