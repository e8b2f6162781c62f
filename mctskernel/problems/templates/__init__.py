"""Kernels for a PyTorch function: plain ones, and templates of fast ones for groups of its operators.

Each module finds the groups that it covers and writes their kernels; `groups` puts them together. What writes an
element of an operator is in `problems.plain_cuda`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from mctskernel.core.task import Shape, Tensor


class Sources(NamedTuple):
    """Texts of a kernel.cu: the plain one, and those with templates, empty where none applies.

    Of these, `reordered` has reductions moved, where that saves work, and `separate` a kernel of its own for each
    reduction that `templates` has in another kernel's epilogue.
    """

    plain: str
    templates: str
    reordered: str
    separate: str


def kernel_sources(
    function: Callable[..., Any],
    inputs: Sequence[Tensor],
    outputs: Sequence[str],
    sizes: Shape,
    typical: Shape | None = None,
) -> Sources:
    """Kernels with their launch plans, which compute a function at any sizes of the dimensions.

    `function` takes tensors in the order of `inputs` and returns as many as `outputs` has names. `sizes` has a size of
    each dimension, above 1 and all different, `typical` the one that kernels are to be fast for, if it is another one.
    Raises PlainCudaError.
    """
    from mctskernel.problems.plain_cuda import PlainCudaError  # noqa: PLC0415 - beside those that import PyTorch
    from mctskernel.problems.plain_cuda.schedule import Schedule  # noqa: PLC0415 - imports PyTorch, an extra
    from mctskernel.problems.plain_cuda.tracing import trace  # noqa: PLC0415 - as above
    from mctskernel.problems.templates.groups import SEPARATE, TEMPLATES  # noqa: PLC0415 - as above
    from mctskernel.problems.templates.reordering import reordered  # noqa: PLC0415 - as above

    traced, names = trace(function, inputs, sizes).at(typical or sizes), [tensor.name for tensor in inputs]
    if len(traced.outputs) != len(outputs):
        raise PlainCudaError(
            f"This function returns {len(traced.outputs)} tensors, and the task has {len(outputs)} outputs."
        )
    plain = Schedule(traced, names, outputs, sizes).text()
    templates = moved = separate = ""
    with suppress(PlainCudaError):  # more launches than a plan may have, say
        templates = Schedule(traced, names, outputs, sizes, TEMPLATES).text()
        separate = Schedule(traced, names, outputs, sizes, SEPARATE).text()
    with suppress(PlainCudaError):
        if other := reordered(traced):
            moved = Schedule(other.at(typical or sizes), names, outputs, sizes, TEMPLATES).text()
    separate = "" if separate in {plain, templates} else separate
    return Sources(plain, "" if templates == plain else templates, moved, separate)
