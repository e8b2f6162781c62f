"""A kernel for each operator of a traced function, and the launch plan that runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mctskernel.core.task import Shape, Tensor


def kernel_source(
    function: Callable[..., Any], inputs: Sequence[Tensor], outputs: Sequence[str], sizes: Shape
) -> str:
    """The text of a kernel.cu, its launch plan included, that computes a function at any sizes of the dimensions.

    `function` takes tensors in the order of `inputs`, the task's, and gives as many as `outputs` has names. `sizes`
    has each dimension's usual size; all should be more than one, and different. Raises PlainCudaError, with a sentence
    that names the operator, for what isn't covered.
    """
    from mctskernel.plain_cuda.schedule import written  # noqa: PLC0415 - imports PyTorch, an extra

    return written(function, inputs, outputs, sizes)
