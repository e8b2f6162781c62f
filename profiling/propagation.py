"""The results that a kernel may have where an input is NaN or infinite.

The reference in float64 says what they must be, and which outputs depend on the place at all: where other finite
numbers change nothing, an output may be what it is with those, whatever 0 * NaN makes of it. IEEE 754 and CUDA leave
open whether a NaN wins a maximum (`numpy.maximum` keeps it, `fmaxf` drops it), a minimum or a comparison, so for a task
that doesn't insist a numpy reference runs once under each convention. Where that is impossible, since it sorts or
computes in PyTorch, what depends on a NaN may be anything.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mctskernel.core.dtypes import is_floating, numpy_dtype
from mctskernel.core.task import Array, Chosen, Propagation, Shape, Task
from mctskernel.core.tensor_array import replaced
from mctskernel.profiling.comparison import Mask

SUBSTITUTES = (1.0, -1.5, 40.0, -1000.0)
"""Numbers that replace a special value to find out which outputs depend on it."""

_ORDERING = frozenset(
    getattr(np, name)
    for name in (
        "argmax argmin argpartition argsort digitize histogram lexsort median nanargmax nanargmin partition percentile "
        "quantile searchsorted sort unique"
    ).split()
)
"""Functions whose results follow from an order, in which a NaN has no place."""


@dataclass(frozen=True)
class Settled:
    """Results that outputs may have: `expected` or one of the `alternatives`; anything where `unsettled`.

    Elements that `depends` names change with the number in the special value's place.
    """

    expected: Mapping[str, Array]
    depends: Mapping[str, Mask]
    alternatives: Mapping[str, tuple[Array, ...]]
    unsettled: Mapping[str, Mask]


def settle(
    task: Task,
    shape: Shape,
    inputs: Mapping[str, Array],
    name: str,
    special: Any,
    *,
    part: Chosen | None = None,
) -> Settled:
    """Results, or the `part` of each that is compared, for `special` values (where not 0) in a float64 input.

    They are in a tensor where that input is. Raises TaskError where the reference fails.
    """
    where = special != 0

    def given(value: Array | float) -> dict[str, Array]:
        return {**inputs, name: replaced(inputs[name], where, value)}

    nan = bool(np.isnan(float(special.min())))
    propagation = task.numerics.nan if nan else task.numerics.infinity
    with np.errstate(all="ignore"):
        expected = task.expected(given(special), shape, part)
        finite = [task.expected(given(_varied(value, special)), shape, part) for value in SUBSTITUTES]
        conventional, followed = (
            _under_conventions(task, shape, given(special), part)
            if nan and propagation is Propagation.LOCAL and not task.takes_tensors
            else ([], not nan or not task.takes_tensors)
        )
    alternatives: dict[str, tuple[Array, ...]] = {}
    unsettled: dict[str, Mask] = {}
    depends: dict[str, Mask] = {}
    for output in task.outputs:
        truth, others = expected[output.name], [each[output.name] for each in finite]
        depends[output.name] = np.any([_differs(each, others[0]) for each in others[1:]], axis=0)
        indifferent = np.where(depends[output.name], truth, others[0])
        touched = depends[output.name] | _differs(truth, others[0])
        whole = not is_floating(numpy_dtype(output.dtype))
        if propagation is Propagation.PROPAGATE:
            alternatives[output.name] = (indifferent,)
        elif whole or not followed:
            alternatives[output.name] = (indifferent,)
            unsettled[output.name] = touched
        elif nan:
            alternatives[output.name] = (indifferent, *(each[output.name] for each in conventional))
        else:
            alternatives[output.name] = (indifferent, np.where(touched, np.nan, truth))
            unsettled[output.name] = np.isnan(truth)
    return Settled(expected, depends, alternatives, unsettled)


def _varied(value: float, special: Any) -> Array | float:
    """Numbers near a value, unlike their neighbours: a softmax of equal ones depends on none. In tensors the value."""
    if not isinstance(special, np.ndarray):
        return value
    return value * (1.0 + np.arange(special.size).reshape(special.shape) % 7 / 8.0)


def _differs(one: Array, other: Array) -> Mask:
    same: Mask = one == other
    if one.dtype.kind == "f":
        same = same | (np.isnan(one) & np.isnan(other))
    return ~same


def _under_conventions(
    task: Task, shape: Shape, inputs: Mapping[str, Array], part: Chosen | None
) -> tuple[list[Mapping[str, Array]], bool]:
    """The reference's outputs under every convention but numpy's own, and whether its functions can be followed."""
    results: list[Mapping[str, Array]] = []
    followed = True
    for keeps_maximum, keeps_minimum, compares in itertools.product((True, False), repeat=3):
        convention = _Convention(keeps_maximum, keeps_minimum, compares)
        traced = {
            key: _as_traced(array, convention) if array.dtype.kind == "f" else array
            for key, array in inputs.items()
        }
        found = task.expected(traced, shape, part)
        results.append({key: np.asarray(array) for key, array in found.items()})
        followed &= convention.calls > 0 and not convention.ordering
    return results[1:], followed


@dataclass
class _Convention:
    """Whether a NaN wins a maximum and a minimum, and whether comparisons with it are false, as numpy has it."""

    keeps_maximum: bool
    keeps_minimum: bool
    compares: bool
    ordering: bool = False
    calls: int = 0

    def call(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """A numpy function under this convention."""
        self.calls += 1
        if ufunc is np.maximum and not self.keeps_maximum:
            ufunc = np.fmax
        elif ufunc is np.minimum and not self.keeps_minimum:
            ufunc = np.fmin
        elif ufunc in _OPPOSITE and not self.compares and method == "__call__":
            return np.logical_not(_OPPOSITE[ufunc](*inputs), **options)
        return getattr(ufunc, method)(*inputs, **options)


_OPPOSITE = {
    np.less: np.greater_equal,
    np.less_equal: np.greater,
    np.greater: np.less_equal,
    np.greater_equal: np.less,
}


class _Traced(np.ndarray[Any, Any]):
    """An array that numpy's functions treat under a convention, as they do what follows from it."""

    convention: _Convention | None = None

    def __array_finalize__(self, source: object) -> None:
        self.convention = getattr(source, "convention", None)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        convention = self.convention or next(
            (each.convention for each in inputs if isinstance(each, _Traced) and each.convention), None
        )
        if "out" in options:
            options["out"] = tuple(_plain(each) for each in options["out"])
        given = [_plain(each) for each in inputs]
        if convention is None:
            return getattr(ufunc, method)(*given, **options)
        if ufunc.__name__ == "clip" and method == "__call__":
            least = convention.call(np.maximum, method, given[0], given[1])
            return _as_traced(convention.call(np.minimum, method, least, given[2], **options), convention)
        return _as_traced(convention.call(ufunc, method, *given, **options), convention)

    def __array_function__(self, func: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
        found = super().__array_function__(func, types, args, kwargs)
        if self.convention is None:
            return found
        self.convention.calls += 1
        self.convention.ordering |= func in _ORDERING
        return _as_traced(found, self.convention)


def _follow_method(name: str) -> None:
    """Methods that order elements say so, as the functions of the same names do."""

    def method(self: _Traced, *args: Any, **kwargs: Any) -> Any:
        if self.convention is not None:
            self.convention.ordering = True
        return getattr(super(_Traced, self), name)(*args, **kwargs)

    setattr(_Traced, name, method)


for _name in ("sort", "argsort", "partition", "argpartition", "argmax", "argmin"):
    _follow_method(_name)


def _as_traced(found: Any, convention: _Convention) -> Any:
    if isinstance(found, tuple | list):
        return type(found)(_as_traced(each, convention) for each in found)
    if not isinstance(found, np.ndarray):
        return found
    traced = found.view(_Traced)
    traced.convention = convention
    return traced


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, _Traced) else value
