"""Numbers that are known at several points, as expressions over the names of the points' coordinates.

What is tried, the first that fits taking all: products of up to three names and halves of them, powers of two, numbers
of blocks, and products of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mctskernel.core.expression import evaluate
from mctskernel.core.task import TaskError

Values = NDArray[Any]
MOST_NAMES, MOST_FACTORS = 3, 3  # of a product
MANY = 400  # factors of which products of one less are tried: more take minutes
PARTS = (2, 4, 8, 16, 32)
LITERALS = tuple(1 << power for power in range(1, 17))  # sizes of blocks that are no constants of the kernel


class UnclearError(TaskError):
    """A number that follows from the dimensions in no way that is tried."""


def fitted(points: Sequence[Mapping[str, int]], values: Sequence[Any], what: str) -> Any:
    """An expression that gives these values, or the number that they all are. Raises UnclearError."""
    first = values[0]
    if all(each == first for each in values):
        return int(first) if isinstance(first, bool) else first
    known = _known(tuple(tuple(each.items()) for each in points))
    found: str | None = None
    if any(isinstance(each, bool) for each in values):
        found = known.condition(np.array(values, bool))
    elif any(isinstance(each, float) for each in values):
        inverse = (name for name, each in known.products.items() if np.allclose(each * np.array(values), 1))
        found = next((f"1.0 / {_grouped(name)}" for name in inverse), None)
    elif all(isinstance(each, int) for each in values):
        found = known.clipped(np.array(values))
    if found is None:
        where = (", ".join(f"{name}={size}" for name, size in point.items()) for point in points)
        pairs = "; ".join(f"{value} at {place}" for value, place in list(zip(values, where, strict=True))[:4])
        raise UnclearError(f"It isn't clear how {what} follows from the dimensions: it is {pairs}.")
    return found


@lru_cache(8)
def _known(points: tuple[tuple[tuple[str, int], ...], ...]) -> _Known:
    return _Known([dict(each) for each in points])


class _Known:
    def __init__(self, points: Sequence[Mapping[str, int]]) -> None:
        self.points = points
        names = {name: np.array([each[name] for each in points]) for name in points[0]}
        self.sizes = names | {str(size): np.full(len(points), size) for size in LITERALS}
        self.products: dict[str, Values] = {
            " * ".join(chosen): np.prod([names[each] for each in chosen], axis=0)
            for count in range(1, MOST_NAMES + 1)
            for chosen in combinations(names, count)
        }
        parts = {
            f"{_grouped(name)} // {by}": each // by
            for name, each in self.products.items()
            for by in PARTS
            if not (each % by).any()
        }
        self.parts: dict[str, Values] = self.products | parts
        blocks = {
            f"ceil_div({name}, {by})": -(-each // size)
            for name, each in self.parts.items()
            for by, size in self.sizes.items()
            if by not in name.split()
        }
        powers = {
            f"next_pow2({name})": np.array([*map(_next_pow2, each)]) for name, each in self.parts.items()
        }
        self.terms: dict[str, Values] = self.parts | powers | blocks
        self.factors: dict[str, Values] = {
            name: each for name, each in blocks.items() if "*" not in name
        } | names

    def clipped(self, wanted: Values) -> str | None:
        """An expression, or its maximum or minimum with a bound that some of the numbers don't reach."""
        found = self.number(wanted, np.full(len(wanted), fill_value=True))
        for clip, bound in (("max", wanted.min()), ("min", wanted.max())) if not found else ():
            inside = wanted != bound
            if len({*wanted[inside]}) > 1 and (text := self.number(wanted, inside)):
                text = f"{clip}({bound}, {text})"
                if [evaluate(text, point) for point in self.points] == wanted.tolist():
                    return text
        return found

    def number(self, wanted: Values, where: Values) -> str | None:
        """An expression that gives these numbers at some of the points."""
        alike = (name for name, each in self.terms.items() if (each == wanted)[where].all())
        if found := next(alike, None):
            return found
        for by, size in self.sizes.items():
            if not by.isdigit() and (wanted * size == wanted[0] * size[0])[where].all():
                return f"ceil_div({wanted[0] * size[0]}, {by})"
        for name, each in self.parts.items():
            difference, ratio = (wanted - each)[where], (wanted // each)[where]
            if abs(difference[0]) < LITERALS[1] and (difference == difference[0]).all():
                return f"{name} + {difference[0]}"
            if 1 < ratio[0] <= LITERALS[5] and (each * ratio[0] == wanted)[where].all():
                return f"{ratio[0]} * {name}"
        most = MOST_FACTORS if len(self.factors) < MANY else MOST_FACTORS - 1
        return self.product(wanted, where, list(self.factors), most)

    def product(self, rest: Values, where: Values, names: Sequence[str], most: int) -> str | None:
        """A product of dimensions, of numbers of blocks and a constant."""
        for number, name in enumerate(names):
            factor = self.factors[name]
            if (factor == factor[0]).all() or (rest % factor)[where].any():
                continue
            left = rest // factor
            one = left[where][0]
            if (left == one)[where].all():
                return name if one == 1 else f"{one} * {name}"
            if most > 1 and (more := self.product(left, where, names[number:], most - 1)):
                return f"{name} * {more}"
        return None

    def condition(self, wanted: Values) -> str | None:
        for name, each in self.products.items():
            for by, size in self.sizes.items():
                if ((each % size == 0) == wanted).all():
                    return f"{_grouped(name)} % {by} == 0"
            for bound in each:
                for sign, holds in (("<=", each <= bound), (">", each > bound)):
                    if (holds == wanted).all():
                        return f"{name} {sign} {bound}"
        return None


def _grouped(name: str) -> str:
    return f"({name})" if " " in name else name


def _next_pow2(number: int) -> int:
    return 1 << max(0, int(number) - 1).bit_length()
