"""Rows of large tensors: enough to see a wrong kernel, few enough to compare for every candidate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mctskernel.core.task import Array
from mctskernel.profiling.verify import Case

ROWS = 512
"""Rows of each tensor that are compared."""

ELEMENTS = 1 << 16
"""Elements of a tensor with one axis that are compared."""

Rows = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Sample:
    """A case of some rows of each tensor; `rows` is missing for tensors that are compared whole."""

    case: Case
    rows: Mapping[str, Rows]

    def rows_of(self, name: str, array: Array) -> Array:
        """The rows of a tensor that the case is about."""
        return _as_rows(array)[self.rows[name]] if name in self.rows else array


def whole(case: Case) -> Sample:
    """Every row."""
    return Sample(case, {})


def sampled(case: Case, rng: np.random.Generator) -> Sample:
    """Random rows of the tensors that have many, the first and the last always among them."""
    tensors = {name: _as_rows(array) for name, array in (*case.inputs.items(), *case.expected.items())}
    wanted = {name: ELEMENTS if array.ndim == 1 else ROWS for name, array in tensors.items()}
    rows = {
        name: _choose(len(array), wanted[name], rng)
        for name, array in tensors.items()
        if len(array) > wanted[name]
    }

    def chosen(arrays: Mapping[str, Array]) -> dict[str, Array]:
        return {
            name: _as_rows(array)[rows[name]] if name in rows else array for name, array in arrays.items()
        }

    part = replace(case, inputs=chosen(case.inputs), expected=chosen(case.expected), plain=chosen(case.plain))
    return Sample(part, rows)


def _choose(count: int, wanted: int, rng: np.random.Generator) -> Rows:
    inner = 1 + rng.choice(count - 2, wanted - 2, replace=False)
    return np.sort(np.concatenate([[0], inner, [count - 1]])).astype(np.intp)


def _as_rows(array: Array) -> Array:
    """A tensor as a matrix of its last axis; one with a single axis stays a row of elements."""
    return array if array.ndim == 1 else array.reshape(-1, array.shape[-1])
