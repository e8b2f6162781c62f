"""What a task file says of tolerances: of all outputs, of one, and at some shapes.

[tolerance]                   of every floating-point output
relative = 1e-5

[tolerance.quantised]         of the output 'quantised'; what it leaves out is as above
absolute = 1

[[tolerance.at]]              of every output, at the shapes that have these sizes
shape = { rows = 32 }
absolute = 1e-3
element = { relative = 1e-2, absolute = 1e-2 }
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

from mctskernel.core.dtypes import is_floating, numpy_dtype
from mctskernel.core.task import Bound, Shape, TaskError, Tensor, Tolerance, ToleranceAt

MOST_SHAPES = 10_000
"""Entries of [[tolerance.at]]."""

_NUMBERS = frozenset({"relative", "absolute", "ratio"})
_WORDS = (
    "'relative', 'absolute' and 'ratio', all numbers of at least 0, and 'element', a table of such numbers"
)


def read_tolerances(
    document: Mapping[str, Any], outputs: Sequence[Tensor], where: Path
) -> tuple[Tolerance, dict[str, Tolerance], tuple[ToleranceAt, ...]]:
    """The tolerance of every output, those of single ones, and what differs at some shapes. Raises TaskError."""
    table = document.get("tolerance", {})
    if not isinstance(table, dict):
        raise TaskError(f"{where}: [tolerance] must be a table.")
    names = {tensor.name for tensor in outputs}
    own = {name: part for name, part in table.items() if name in names and isinstance(part, dict)}
    at = table.get("at", [])
    general = {key: value for key, value in table.items() if key not in own}
    if isinstance(at, list):
        general.pop("at", None)
    unknown = [key for key, part in general.items() if isinstance(part, dict) and key != "element"]
    if unknown:
        raise TaskError(f"{where}: [tolerance.{unknown[0]}] is for no output ({', '.join(sorted(names))}).")
    tolerance = replace(Tolerance(), **_changes(general, f"{where}: [tolerance]"))
    floating = {tensor.name for tensor in outputs if is_floating(numpy_dtype(tensor.dtype))}
    exact = Tolerance(relative=0.0, absolute=0.0)
    return (
        tolerance,
        {
            name: replace(tolerance if name in floating else exact, **_changes(part, f"{where}: [tolerance]"))
            for name, part in own.items()
        },
        _at(at, where) if isinstance(at, list) else (),
    )


def check_tolerances_at(tolerances: Sequence[ToleranceAt], shapes: Sequence[Shape], where: Path) -> None:
    """A tolerance for shapes that the task doesn't have is a mistake in writing. Raises TaskError."""
    known = {(name, size) for shape in shapes for name, size in shape.items()}
    for entry in tolerances:
        # Which sizes come together is a question for each pair of an entry and a shape, and may be a long one.
        for name, size in entry.shape.items():
            if (name, size) not in known:
                raise TaskError(f"{where}: [[tolerance.at]] is for {name}={size}, which no shape has.")


def _at(entries: Sequence[object], where: Path) -> tuple[ToleranceAt, ...]:
    what = f"{where}: [[tolerance.at]]"
    if len(entries) > MOST_SHAPES:
        raise TaskError(f"{what} has {len(entries)} entries; at most {MOST_SHAPES} are read.")
    found = []
    for entry in entries:
        shape = entry.get("shape") if isinstance(entry, dict) else None
        if (
            not isinstance(entry, dict)
            or not isinstance(shape, dict)
            or not shape
            or not all(map(_is_size, shape.values()))
        ):
            raise TaskError(f"{what} needs a 'shape' that maps dimensions to whole numbers.")
        changes = _changes({key: value for key, value in entry.items() if key != "shape"}, what)
        found.append(ToleranceAt(shape, changes))
    return tuple(found)


def _changes(table: Mapping[str, Any], what: str) -> dict[str, Any]:
    """What a table states, as fields of a tolerance."""
    found = dict(table)
    element = found.pop("element", None)
    if not found.keys() <= _NUMBERS or not all(map(_is_allowance, found.values())):
        raise TaskError(f"{what} may hold {_WORDS}.")
    if element is not None:
        found["element"] = _bound(element, what)
    return found


def _bound(table: object, what: str) -> Bound:
    if (
        not isinstance(table, dict)
        or not {"relative", "absolute"} <= table.keys() <= {"relative", "absolute", "most"}
        or not all(map(_is_allowance, table.values()))
        or not all(math.isfinite(table[name]) for name in ("relative", "absolute"))
    ):
        raise TaskError(
            f"{what}: 'element' must be a table of 'relative' and 'absolute', which are finite numbers of at least 0, "
            "and perhaps 'most'."
        )
    return Bound(**table)


def _is_allowance(value: object) -> TypeGuard[int | float]:
    # A comparison with NaN is false.
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _is_size(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
