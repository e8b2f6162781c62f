"""The tolerance of a problem: mctskernel's own, widened by the reference's rounding errors, and the benchmark's.

The rounding errors of a reference are its results in its own precision against those in 64-bit floats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mctskernel.core.dtypes import is_floating, numpy_dtype
from mctskernel.core.task import Array, Bound, Precision, Shape, Tensor
from mctskernel.problems.torch_reference import in_numpy, listed_results
from mctskernel.profiling.pytorch.verdict import TOLERANCES

OWN_MARGIN = 1.5
"""A kernel may be off by so many times the reference's own rounding error, where our tolerance is narrower."""


def tolerance_table(
    outputs: Sequence[Tensor],
    own: Mapping[str, OwnError],
    bounds: Sequence[tuple[Shape, Bound]],
    precision: Precision = Precision.LOCKED,
) -> dict[str, Any]:
    """The table [tolerance] of task.toml; empty where no output is of floating-point numbers.

    `own` are the reference's own errors; `bounds` are the benchmark's on elements, by shape. With relaxed `precision`
    they alone count.
    """
    if precision is Precision.RELAXED and bounds and floating(outputs):
        at = [{"shape": dict(shape), **relaxed(each)} for shape, each in bounds]
        return relaxed(bounds[0][1]) | ({"at": at} if any(each != bounds[0][1] for _, each in bounds) else {})
    rows = {
        tensor.name: _of_rows(tensor, own.get(tensor.name, OwnError()).of_row) for tensor in floating(outputs)
    }
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


def relaxed(bound: Bound) -> dict[str, Any]:
    """The tolerance that is a benchmark's own."""
    return {
        "relative": bound.relative,
        "absolute": bound.absolute,
        "ratio": math.inf,
        "element": _of_elements(bound),
    }


def imprecisions(outputs: Sequence[Tensor], own: Mapping[str, OwnError]) -> Iterator[str]:
    """A sentence for each output whose tolerance is widened by the reference's own error."""
    for tensor in floating(outputs):
        error = own.get(tensor.name, OwnError()).of_row
        if _of_rows(tensor, error)["relative"] > TOLERANCES[tensor.dtype].relative:
            yield (
                f"The reference itself is off by {error:.2g} of a row's largest value in '{tensor.name}', so kernels "
                "may be too."
            )


def floating(outputs: Sequence[Tensor]) -> list[Tensor]:
    """The floating-point outputs; others must be equal."""
    return [tensor for tensor in outputs if is_floating(numpy_dtype(tensor.dtype))]


class OwnError(NamedTuple):
    """An error relative to the largest value in a row of the last axis, and to 1 + the element's size; and as it is."""

    of_row: float = 0.0
    of_element: float = 0.0
    largest: float = 0.0


def own_errors(
    function: Callable[..., Any], drawn: Iterable[Mapping[str, Any]], outputs: Sequence[Tensor]
) -> dict[str, OwnError]:
    """A function's largest rounding errors in its own precision, by output; empty where the CPU lacks that."""
    import torch  # noqa: PLC0415 - an extra

    found: dict[str, OwnError] = {}
    for tensors in drawn:
        wide = [(each.double() if each.is_floating_point() else each).numpy() for each in tensors.values()]
        try:
            with torch.no_grad():
                near = listed_results(function(*tensors.values()))
            exact = listed_results(in_numpy(function, *wide))
        except (RuntimeError, NotImplementedError):
            continue
        for tensor, ours, true in zip(outputs, near, exact, strict=True):
            if is_floating(numpy_dtype(tensor.dtype)):
                error = rounding_error(ours.double().numpy().reshape(true.shape), true)
                found[tensor.name] = OwnError(*map(max, found.get(tensor.name, OwnError()), error))
    return found


def rounding_error(near: Array, true: Array) -> OwnError:
    error = np.nan_to_num(np.abs(near - true))
    scale = np.maximum(np.abs(true).max(axis=-1, keepdims=True, initial=0.0), 1e-30)
    of_element = error / (1 + np.nan_to_num(np.abs(true)))
    of_row = np.nan_to_num(np.abs(near - true) / scale)
    return OwnError(*(float(each.max(initial=0.0)) for each in (of_row, of_element, error)))


def _of_rows(tensor: Tensor, own: float) -> dict[str, float]:
    """Our tolerance for an output's type, widened to the reference's own error."""
    ours = TOLERANCES[tensor.dtype]
    wanted = float(f"{OWN_MARGIN * own:.2g}")
    return {"relative": max(ours.relative, wanted), "absolute": ours.absolute, "ratio": ours.ratio}


def _of_elements(bound: Bound) -> dict[str, float]:
    table = {"relative": bound.relative, "absolute": bound.absolute}
    return table if math.isinf(bound.most) else {**table, "most": bound.most}
