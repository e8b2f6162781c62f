"""The dimensions of a function's tensors, found by calling it with other sizes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mctskernel.core.task import Shape, TaskError

GRANULARITIES = (1, 2, 4, 8, 16, 32, 64)

_VERIFY = ((1, 1), (67, 1), (1, 2056), (35, 37), (12, 130), (64, 32), (33, 128))
_HELD_OUT = ((1, 259), (130, 2), (31, 97), (64, 256))
_ALIGNED = (256, 128, 64, 32, 16, 8)
"""Sizes of all dimensions at once, of which the first that the function accepts is verified: for kernels by tiles."""

_MOST_ELEMENTS = 1 << 20  # of a tensor at such sizes: references of more take seconds

_BETWEEN = (1, 3, 2, 5, 1, 4, 3)
"""Sizes of the first, the last and other dimensions: one, odd, and more than a block."""

_NAMES: Mapping[int, tuple[str, ...]] = {1: ("n",), 2: ("rows", "cols"), 3: ("rows", "groups", "cols")}

Works = Callable[[Shape], bool]  # whether the function accepts tensors at a shape

_Same = Callable[[Sequence[tuple[str | int, ...]], int, int], list[str]]
"""The dimensions of earlier tensors that an extent may be, given its axis and the rank."""


@dataclass(frozen=True)
class Dimensions:
    """Each tensor's `extents`: dimensions' names or constants; a size must be a multiple of its `granularity`."""

    sizes: Shape
    extents: tuple[tuple[str | int, ...], ...]
    granularity: Mapping[str, int]

    def restricted(self, names: Sequence[str]) -> Dimensions:
        """These dimensions only; the others become constants."""
        return Dimensions(
            {name: self.sizes[name] for name in names},
            tuple(
                tuple(self.sizes[e] if isinstance(e, str) and e not in names else e for e in each)
                for each in self.extents
            ),
            {name: self.granularity[name] for name in names},
        )


def parse_shape(text: str) -> tuple[tuple[str, int], ...]:
    """`8192x4096` or `rows=8192xcols=4096`: name (empty if none) and size of each extent. Raises TaskError."""
    found = [re.fullmatch(r"(?:([A-Za-z]\w*)=)?([1-9]\d*)", part) for part in re.split(r"(?<=\d)x", text)]
    if not all(found):
        raise TaskError(
            f"{text!r} is no shape; write 8192x4096, or rows=8192xcols=4096 to name its dimensions."
        )
    return tuple((match[1] or "", int(match[2])) for match in found if match)


def find_dimensions(shapes: Sequence[tuple[tuple[str, int], ...]], works: Callable[..., bool]) -> Dimensions:
    """The dimensions of tensors of these shapes.

    Equal extents at the same axis of two tensors, from the left or from the right, are the same dimension; or equal
    extents anywhere, if then more dimensions can vary. `works(extents, sizes)` tells whether the function accepts
    tensors of these extents at a shape. Raises TaskError.
    """
    found = [_varying(shapes, works, same) for same in (_at_the_same_place, _anywhere)]
    return max(found, key=lambda each: len(each.sizes))


def _varying(
    shapes: Sequence[tuple[tuple[str, int], ...]], works: Callable[..., bool], same: _Same
) -> Dimensions:
    sizes: dict[str, int] = {}
    extents: tuple[tuple[str | int, ...], ...] = ()
    for shape in shapes:
        extents = (*extents, _named(shape, sizes, extents, same))
    if not works(extents, sizes):
        raise TaskError("The function fails on tensors of these shapes.")
    granularity: dict[str, int] = {}
    for name in list(sizes):
        grain = next(
            (g for g in GRANULARITIES if all(works(extents, {**sizes, name: g * n}) for n in (1, 3, 37))),
            None,
        )
        if grain is None:
            extents = tuple(tuple(sizes[name] if e == name else e for e in each) for each in extents)
            del sizes[name]
        else:
            granularity[name] = grain
    order = dict.fromkeys(e for each in extents for e in each if isinstance(e, str))
    return Dimensions({name: sizes[name] for name in order}, extents, granularity)


def awkward_shapes(dimensions: Dimensions, works: Works) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
    """Shapes to verify at and shapes to hold out, which the function accepts."""
    verify = [shape for shape in _sized(dimensions, _VERIFY) if works(shape)]
    rank = max(map(len, dimensions.extents))
    aligned = (dict.fromkeys(dimensions.sizes, size) for size in _ALIGNED if size**rank <= _MOST_ELEMENTS)
    verify += [shape for shape in [next(filter(works, aligned), {})] if shape and shape not in verify]
    held_out = [shape for shape in _sized(dimensions, _HELD_OUT) if works(shape) and shape not in verify]
    return tuple(verify) or (dimensions.sizes,), tuple(held_out)


def _named(
    shape: Sequence[tuple[str, int]],
    sizes: dict[str, int],
    earlier: Sequence[tuple[str | int, ...]],
    same: _Same,
) -> tuple[str | int, ...]:
    """The extents of a tensor; new dimensions are added to the sizes."""
    usual = _NAMES.get(len(shape), tuple(f"dim{axis}" for axis in range(len(shape))))
    found: list[str | int] = []
    for axis, (given, size) in enumerate(shape):
        if size == 1:
            found.append(1)
            continue
        known = [
            name for name in same(earlier, axis, len(shape)) if sizes.get(name) == size and name not in found
        ]
        fresh = usual[axis] if usual[axis] not in sizes else f"size{len(sizes)}"
        name = given or (known[0] if known else fresh)
        if sizes.get(name, size) != size:
            raise TaskError(f"The dimension '{name}' can't be both {sizes[name]} and {size}.")
        sizes[name] = size
        found.append(name)
    return tuple(found)


def _at_the_same_place(earlier: Sequence[tuple[str | int, ...]], axis: int, rank: int) -> list[str]:
    """Dimensions of earlier tensors at the same axis from the right, as in broadcasting, or from the left."""
    right = [each[axis - rank] for each in earlier if rank - axis <= len(each)]
    left = [each[axis] for each in earlier if axis < len(each)]
    return [name for name in (*right, *left) if isinstance(name, str)]


def _anywhere(earlier: Sequence[tuple[str | int, ...]], axis: int, rank: int) -> list[str]:
    """Dimensions at the same axis first, then all others."""
    others = [name for each in earlier for name in each if isinstance(name, str)]
    return [*_at_the_same_place(earlier, axis, rank), *others]


def _sized(dimensions: Dimensions, table: Sequence[tuple[int, int]]) -> Iterator[Shape]:
    names = list(dimensions.sizes)
    first = next((e for each in dimensions.extents for e in each if isinstance(e, str)), "")
    last = next((e for e in reversed(dimensions.extents[0]) if isinstance(e, str)), "")
    seen: list[Shape] = []
    for row, (outer, inner) in enumerate(table):
        shape: dict[str, int] = {}
        for name in names:
            size = inner if name == last else outer if name == first else _BETWEEN[row]
            grain = dimensions.granularity[name]
            # Of groups, say, also such with more than one element.
            shape[name] = grain * max(1 if grain == 1 else 1 + row % 2, size // grain)
        if shape not in seen:
            seen.append(shape)
            yield shape
