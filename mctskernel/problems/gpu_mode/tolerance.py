"""How far a kernel may be off in a GPU MODE task: by what its check allows, and by what we do.

The check measures an element by its own size, against the reference as it rounds on its way. Here the truth is the
reference in 64-bit floats, so that an element may be off by a rounding of its type, whatever the check says. An
absolute tolerance alone would let small results be zeros: ours is asked besides, a share of a row's largest value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mctskernel.core.dtypes import is_floating, numpy_dtype, rounding_unit
from mctskernel.core.task import Array, Bound, Tensor
from mctskernel.problems.gpu_mode.cases import Case
from mctskernel.problems.gpu_mode.program import Compared
from mctskernel.problems.tolerance import floating, listed_arrays, row_errors
from mctskernel.torch_reference import in_numpy


def judged_as(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The outputs by what they are judged as: 64-bit results of other inputs are a reference's caution, no demand."""
    if any(tensor.dtype == "float64" for tensor in inputs):
        return tuple(outputs)
    return tuple(replace(each, dtype="float32") if each.dtype == "float64" else each for each in outputs)


def element_bounds(cases: Sequence[Case], outputs: Sequence[Tensor]) -> list[Bound]:
    """How far each element may be off in each case: what its check allows, and at least a rounding of the outputs."""
    unit = _unit(floating(outputs))
    return [Bound(max(each.relative, unit), each.absolute) for each in map(_narrowest, cases)]


def narrowness(cases: Sequence[Case], outputs: Sequence[Tensor]) -> Iterator[str]:
    """A sentence where its check allows less than a rounding."""
    tensors = floating(outputs)
    narrowest = min((_narrowest(case).relative for case in cases), default=0.0)
    if tensors and narrowest < _unit(tensors):
        yield (
            f"Its check lets an element differ by {narrowest:g} of its size, less than a rounding of "
            f"{tensors[0].dtype}: a kernel is verified to a rounding, and its check may still refuse what rounds "
            "otherwise than PyTorch."
        )


def own_errors(
    function: Callable[..., Any], arrays: Sequence[Array], outputs: Sequence[Tensor], given: Sequence[Array]
) -> dict[str, float]:
    """How far results `given` in the reference's own precision are off, as shares of a row's largest value."""
    wide = [array.astype(np.float64) if is_floating(array.dtype) else array for array in arrays]
    return row_errors(outputs, given, listed_arrays(in_numpy(function, *wide)))


def _narrowest(case: Case) -> Compared:
    return Compared(
        min(each.relative for each in case.comparisons), min(each.absolute for each in case.comparisons)
    )


def _unit(tensors: Sequence[Tensor]) -> float:
    return max((rounding_unit(numpy_dtype(tensor.dtype)) for tensor in tensors), default=0.0)
