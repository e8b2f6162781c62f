"""The dimensions in which the tensors of a module can vary: which extents are the same, and which never change."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mctskernel.core.task import Shape
from mctskernel.problems.kernelbench.drawing import Extents
from mctskernel.problems.kernelbench.operands import Maker, Operand, Operands
from mctskernel.problems.kernelbench.reference import Argument, ValueSource
from mctskernel.torch_dimensions import Dimensions, find_dimensions

MOST_VARYING = 12
"""Tensors up to which the extents of parameters may vary too; of more of them only those of what `forward` takes."""

_FIXED = "fixed"
"""Begins the name of an extent that never varies, which its size ends."""


def shaped_operands(
    name: str,
    model: Any,
    arguments: tuple[Argument, ...],
    members: tuple[Operand, ...],
    maker: Maker,
    *,
    most_dimensions: int,
) -> Operands:
    """With as many dimensions as can vary without changing what is computed. Raises TaskError if it fails."""
    whole = Dimensions({}, tuple(each.size for each in members), {})
    fixed = Operands(name, model, arguments, members, maker, whole)
    fixed.check_result()
    found = _found(fixed)
    for dimensions in (found, found.restricted(list(found.sizes)[:1])):
        operands = replace(fixed, dimensions=dimensions)
        if 0 < len(dimensions.sizes) <= most_dimensions and operands.agree:
            return operands
    return fixed


def _found(fixed: Operands) -> Dimensions:
    """The dimensions of what forward takes, and of its parameters where there are few."""
    few = len(fixed.members) <= MOST_VARYING
    varying = [
        index
        for index, each in enumerate(fixed.members)
        if each.source is not ValueSource.MODEL and (few or not each.place)
    ]

    def extended(extents: Sequence[Extents]) -> tuple[Extents, ...]:
        complete: list[Extents] = [each.size for each in fixed.members]
        for index, each in zip(varying, extents, strict=True):
            complete[index] = each
        return tuple(complete)

    def works(extents: Sequence[Extents], sizes: Shape) -> bool:
        if any(
            size != int(name.removeprefix(_FIXED)) for name, size in sizes.items() if name.startswith(_FIXED)
        ):
            return False
        return replace(fixed, dimensions=Dimensions({}, extended(extents), {})).works(sizes)

    members = [fixed.members[index] for index in varying]
    found = find_dimensions([_named(each, {}) for each in members], works)
    if _constant_size(found) > 1:
        # Matrices that are multiplied, or square: the same size is the same dimension wherever it is.
        same = {size: f"size{size}" for each in members for size in each.size if size > 1}
        found = min(
            found, find_dimensions([_named(each, same) for each in members], works), key=_constant_size
        )
    found = _split(found, [index for index, each in enumerate(members) if not each.place], works)
    return replace(found, extents=extended(found.extents))


def _split(
    found: Dimensions, indices: Sequence[int], works: Callable[[Sequence[Extents], Shape], bool]
) -> Dimensions:
    """With a dimension of its own for each extent of some tensors that varies alone: the rows of a square matrix.

    Not for parameters: without data, not every operator sees that a bias is too long.
    """
    places = [(each, axis) for each in indices for axis in range(len(found.extents[each]))]
    for index, axis in places:
        name = found.extents[index][axis]
        occurrences = sum(each.count(name) for each in found.extents)
        if not isinstance(name, str) or occurrences < 2 or found.granularity[name] != 1:
            continue
        own = f"{name}_{axis}" if index == 0 else f"{name}_{index}{axis}"
        tensor = (*found.extents[index][:axis], own, *found.extents[index][axis + 1 :])
        extents = (*found.extents[:index], tensor, *found.extents[index + 1 :])
        size = found.sizes[name]
        if all(works(extents, {**found.sizes, own: each}) for each in (1, 3, 37, 2 * size + 1)):
            found = Dimensions({**found.sizes, own: size}, extents, {**found.granularity, own: 1})
    return found


def _constant_size(dimensions: Dimensions) -> int:
    """The product of all extents that never vary."""
    return math.prod(extent for each in dimensions.extents for extent in each if isinstance(extent, int))


def _named(operand: Operand, names: Mapping[int, str]) -> tuple[tuple[str, int], ...]:
    """The extents of a tensor with their names; those of a window, which are a parameter's last, never vary."""
    return tuple(
        (f"{_FIXED}{size}" if operand.place and axis > 1 else names.get(size, ""), size)
        for axis, size in enumerate(operand.size)
    )
