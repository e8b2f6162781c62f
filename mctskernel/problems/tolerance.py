"""The tolerance of a problem: mctskernel's own, widened by the reference's rounding errors, and the benchmark's.

The rounding errors of a reference are its results in its own precision against those in 64-bit floats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mctskernel.core.dtypes import is_floating, numpy_dtype
from mctskernel.core.task import Array, Bound, Shape, Tensor
from mctskernel.problems.torch_reference import in_numpy
from mctskernel.profiling.pytorch.verdict import TOLERANCES

OWN_MARGIN = 1.5
"""A kernel may be off by so many times the reference's own rounding error, where our tolerance is narrower."""


def tolerance_table(
    outputs: Sequence[Tensor], own: Mapping[str, float], bounds: Sequence[tuple[Shape, Bound]]
) -> dict[str, Any]:
    """The table [tolerance] of task.toml; empty where no output is of floating-point numbers.

    `own` are the reference's own errors (`row_errors`); `bounds` are the benchmark's on elements, by shape.
    """
    rows = {tensor.name: _of_rows(tensor, own.get(tensor.name, 0.0)) for tensor in floating(outputs)}
    if not rows:
        return {}
    general = next(iter(rows.values()))
    first = bounds[0][1] if bounds else None
    if first is None:
        elements: dict[str, Any] = {}
    elif all(each == first for _, each in bounds):
        elements = {"element": _of_elements(first)}
    else:
        elements = {"at": [{"shape": dict(shape), "element": _of_elements(each)} for shape, each in bounds]}
    return general | elements | {name: each for name, each in rows.items() if each != general}


def imprecisions(outputs: Sequence[Tensor], own: Mapping[str, float]) -> Iterator[str]:
    """A sentence for each output whose tolerance is widened by the reference's own error."""
    for tensor in floating(outputs):
        error = own.get(tensor.name, 0.0)
        if _of_rows(tensor, error)["relative"] > TOLERANCES[tensor.dtype].relative:
            yield (
                f"The reference itself is off by {error:.2g} of a row's largest value in '{tensor.name}', so kernels "
                "may be too."
            )


def floating(outputs: Sequence[Tensor]) -> list[Tensor]:
    """The floating-point outputs; others must be equal."""
    return [tensor for tensor in outputs if is_floating(numpy_dtype(tensor.dtype))]


def row_errors(outputs: Sequence[Tensor], near: Sequence[Array], exact: Sequence[Array]) -> dict[str, float]:
    """The error of each floating-point output, relative to the largest value in a row of its last axis."""
    wanted = {tensor.name for tensor in floating(outputs)}
    return {
        tensor.name: _row_error(ours.reshape(true.shape), true)
        for tensor, ours, true in zip(outputs, near, exact, strict=True)
        if tensor.name in wanted
    }


def own_errors(
    function: Callable[..., Any], tensors: Mapping[str, Any], outputs: Sequence[Tensor]
) -> dict[str, float]:
    """The row errors of a function in its own precision, on some tensors."""
    import torch  # noqa: PLC0415 - an extra

    with torch.no_grad():
        result = function(*tensors.values())
    near = [each.double().numpy() for each in (result if isinstance(result, tuple | list) else [result])]
    wide = [(each.double() if each.is_floating_point() else each).numpy() for each in tensors.values()]
    exact = listed_arrays(in_numpy(function, *wide))
    return row_errors(outputs, near, [each.reshape(each.shape or (1,)) for each in exact])


class OwnError(NamedTuple):
    """The error of float32 results against float64, relative to a row's largest value and to 1 + the element's size."""

    of_row: float = 0.0
    of_element: float = 0.0


def own_error(function: Callable[..., Any], tensors: Mapping[str, Any]) -> OwnError:
    """The rounding error of a function on some tensors."""
    arrays = [tensor.numpy() for tensor in tensors.values()]
    wide = [array.astype(np.float64) if array.dtype.kind == "f" else array for array in arrays]
    try:
        ours, truth = in_numpy(function, *arrays), in_numpy(function, *wide)
    except RuntimeError:
        return OwnError()  # it has tensors of one precision
    pairs = [
        (near, true)
        for near, true in zip(listed_arrays(ours), listed_arrays(truth), strict=True)
        if true.dtype.kind == "f"
    ]
    return OwnError(
        max((_row_error(near, true) for near, true in pairs), default=0.0),
        max((_element_error(near, true) for near, true in pairs), default=0.0),
    )


def listed_arrays(result: Array | tuple[Array, ...]) -> tuple[Array, ...]:
    """The results of a function as a tuple."""
    return result if isinstance(result, tuple) else (result,)


def _row_error(near: Array, true: Array) -> float:
    scale = np.maximum(np.abs(true).max(axis=-1, keepdims=True, initial=0.0), 1e-30)
    return float(np.nan_to_num(np.abs(near - true) / scale).max(initial=0.0))


def _element_error(near: Array, true: Array) -> float:
    error = np.nan_to_num(np.abs(near - true)) / (1 + np.nan_to_num(np.abs(true)))
    return float(error.max(initial=0.0))


def _of_rows(tensor: Tensor, own: float) -> dict[str, float]:
    """Our tolerance for an output's type, widened to the reference's own error."""
    ours = TOLERANCES[tensor.dtype]
    wanted = float(f"{OWN_MARGIN * own:.2g}")
    return {"relative": max(ours.relative, wanted), "absolute": ours.absolute, "ratio": ours.ratio}


def _of_elements(bound: Bound) -> dict[str, float]:
    table = {"relative": bound.relative, "absolute": bound.absolute}
    return table if math.isinf(bound.most) else {**table, "most": bound.most}
