"""Kernels for a PyTorch function: plain ones, and templates of fast ones for groups of its operators.

Each module finds the groups that it covers and writes their kernels; `groups` puts them together. What writes an
element of an operator is in `problems.plain_cuda`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mctskernel.core.task import Shape, Tensor


class Sources(NamedTuple):
    """Texts of a kernel.cu: the plain one, and those with templates, empty where none applies; `failure` says why some
    are missing that should be there.

    Of these, `reordered` has reductions moved, where that saves work, and `separate` a kernel of its own for each
    reduction that `templates` has in another kernel's epilogue.
    """

    plain: str
    templates: str
    reordered: str
    separate: str
    failure: str = ""


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
    from mctskernel.problems.plain_cuda.unrolled import layered  # noqa: PLC0415 - as above
    from mctskernel.problems.templates.groups import SEPARATE, TEMPLATES  # noqa: PLC0415 - as above
    from mctskernel.problems.templates.reordering import reordered  # noqa: PLC0415 - as above

    traced = layered(trace(function, inputs, sizes)).at(typical or sizes)
    names = [tensor.name for tensor in inputs]
    if len(traced.outputs) != len(outputs):
        raise PlainCudaError(
            f"This function returns {len(traced.outputs)} tensors, and the task has {len(outputs)} outputs."
        )
    plain = Schedule(traced, names, outputs, sizes).text()
    failure = ""

    def attempt(make: Callable[[], str]) -> str:
        nonlocal failure
        try:
            return make()
        except PlainCudaError:  # more launches than a plan may have, say
            return ""
        except Exception as error:  # noqa: BLE001 - the plain kernel is there
            failure = f"{type(error).__name__}: {error}"
            return ""

    def moved() -> str:
        other = reordered(traced)
        return Schedule(other.at(typical or sizes), names, outputs, sizes, TEMPLATES).text() if other else ""

    templates, separate = (
        attempt(Schedule(traced, names, outputs, sizes, each).text) for each in (TEMPLATES, SEPARATE)
    )
    separate = "" if separate in {plain, templates} else separate
    return Sources(plain, "" if templates == plain else templates, attempt(moved), separate, failure)
