"""How far a kernel may be off in a GPU MODE task: by what its check allows, and by what we do.

The check measures an element by its own size, against the reference as it rounds on its way. Here the truth is the
reference in 64-bit floats, so that an element may be off by a rounding of its type, whatever the check says. An
absolute tolerance alone would let small results be zeros: ours is asked besides, a share of a row's largest value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mctskernel.core.dtypes import is_floating, numpy_dtype, rounding_unit
from mctskernel.core.task import Array, Tensor
from mctskernel.problems.gpu_mode.cases import Case
from mctskernel.problems.gpu_mode.program import Compared
from mctskernel.profiling.pytorch.verdict import TOLERANCES
from mctskernel.torch_reference import in_numpy

OWN_MARGIN = 1.5
"""How many times as far off as the reference is in its own precision a kernel may be, where ours allows less."""


def judged_as(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The outputs by what they are judged as: 64-bit results of other inputs are a reference's caution, no demand."""
    if any(tensor.dtype == "float64" for tensor in inputs):
        return tuple(outputs)
    return tuple(replace(each, dtype="float32") if each.dtype == "float64" else each for each in outputs)


def tolerance_table(
    cases: Sequence[Case], outputs: Sequence[Tensor], own: Mapping[str, float], case: str
) -> dict[str, Any]:
    """[tolerance] of task.toml; `own` are the reference's own errors, and `case` the dimension that numbers cases."""
    floating = [tensor for tensor in outputs if is_floating(numpy_dtype(tensor.dtype))]
    if not floating:
        return {}
    tables = {tensor.name: _ours(tensor, own.get(tensor.name, 0.0)) for tensor in floating}
    table: dict[str, Any] = dict(tables[floating[0].name])
    unit = _unit(floating)
    bounds = [
        {"relative": max(each.relative, unit), "absolute": each.absolute} for each in map(_narrowest, cases)
    ]
    if all(each == bounds[0] for each in bounds):
        table["element"] = bounds[0]
    else:
        table["at"] = [{"shape": {case: number}, "element": each} for number, each in enumerate(bounds)]
    return table | {name: each for name, each in tables.items() if each != tables[floating[0].name]}


def tolerance_remarks(
    cases: Sequence[Case], outputs: Sequence[Tensor], own: Mapping[str, float]
) -> list[str]:
    """What has to be said of it."""
    floating = [tensor for tensor in outputs if is_floating(numpy_dtype(tensor.dtype))]
    remarks = [
        f"The reference is off by {own[tensor.name]:.2g} of a row's largest value in '{tensor.name}', in its own "
        "precision, and so may kernels be."
        for tensor in floating
        if _ours(tensor, own.get(tensor.name, 0.0))["relative"] > TOLERANCES[tensor.dtype].relative
    ]
    narrowest = min((_narrowest(case).relative for case in cases), default=0.0)
    if floating and narrowest < _unit(floating):
        remarks.append(
            f"Its check lets an element differ by {narrowest:g} of its size, less than a rounding of "
            f"{floating[0].dtype}: a kernel is verified to a rounding, and its check may still refuse what rounds "
            "otherwise than PyTorch."
        )
    return remarks


def own_errors(
    function: Callable[..., Any], arrays: Sequence[Array], outputs: Sequence[Tensor], given: Sequence[Array]
) -> dict[str, float]:
    """How far results `given` in the reference's own precision are off, as shares of a row's largest value."""
    wide = [array.astype(np.float64) if is_floating(array.dtype) else array for array in arrays]
    truth = in_numpy(function, *wide)
    found = {}
    for tensor, near, true in zip(
        outputs, given, truth if isinstance(truth, tuple) else (truth,), strict=True
    ):
        if is_floating(numpy_dtype(tensor.dtype)):
            scale = np.maximum(np.abs(true).max(axis=-1, keepdims=True, initial=0.0), 1e-30)
            error = np.nan_to_num(np.abs(near.reshape(true.shape) - true) / scale)
            found[tensor.name] = float(error.max(initial=0.0))
    return found


def _ours(tensor: Tensor, own: float) -> dict[str, float]:
    ours = TOLERANCES[tensor.dtype]
    relative = max(ours.relative, float(f"{OWN_MARGIN * own:.2g}"))
    return {"relative": relative, "absolute": ours.absolute, "ratio": ours.ratio}


def _narrowest(case: Case) -> Compared:
    return Compared(
        min(each.relative for each in case.comparisons), min(each.absolute for each in case.comparisons)
    )


def _unit(floating: Sequence[Tensor]) -> float:
    return max(rounding_unit(numpy_dtype(tensor.dtype)) for tensor in floating)
