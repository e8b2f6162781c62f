"""Dimensions of a task from the sizes that its tensors have in each of its cases."""

from __future__ import annotations

import keyword
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mctskernel.core.expression import evaluate_int

Sizes = tuple[int, ...]
"""An extent in each case."""

_MOST_NAMES = 12
"""Dimensions whose pairs are tried for an extent that is none of them."""


@dataclass
class Dimensions:
    """What is known of the dimensions so far: their sizes in each case, and names that arguments offer for more."""

    offered: Mapping[str, Sizes]
    taken: frozenset[str]
    sizes: dict[str, Sizes] = field(default_factory=dict)

    def extent(self, sizes: Sizes, otherwise: str) -> int | str:
        """An extent of an input as a number or an expression; a new dimension where it is none over known ones."""
        known = self.known(sizes)
        return self._new(otherwise, sizes) if known is None else known

    def known(self, sizes: Sizes) -> int | str | None:
        """An extent over dimensions that are known or offered, or None."""
        if len(set(sizes)) == 1:
            return sizes[0]
        for name, vector in (*self.sizes.items(), *self.offered.items()):
            if vector == sizes:
                return self._take(name, vector)
        return next(self._expressions(sizes), None)

    def _expressions(self, sizes: Sizes) -> Iterator[str]:
        offered = {**self.sizes, **self.offered}
        known = {name: vector for name, vector in offered.items() if min(vector) > 0}
        known = dict(list(known.items())[:_MOST_NAMES])
        if min(sizes) < 1:
            return
        for text, names in _candidates(known, sizes):
            shapes = ({name: known[name][case] for name in names} for case in range(len(sizes)))
            if all(evaluate_int(text, shape) == size for shape, size in zip(shapes, sizes, strict=True)):
                yield self._with_names(text, names)

    def _with_names(self, text: str, names: Sequence[str]) -> str:
        for name in names:
            self._take(name, {**self.offered, **self.sizes}[name])
        return text

    def _take(self, name: str, vector: Sizes) -> str:
        return name if name in self.sizes else self._new(name, vector)

    def _new(self, name: str, vector: Sizes) -> str:
        while name in self.taken or name in self.sizes or keyword.iskeyword(name):
            name += "_"
        self.sizes[name] = vector
        return name


def _candidates(known: Mapping[str, Sizes], sizes: Sizes) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Expressions that may give these sizes: of one dimension and a number, then of two dimensions."""
    first = sizes[0]
    for name, vector in known.items():
        one = vector[0]
        if first % one == 0:
            yield f"{first // one} * {name}", (name,)
        if one % first == 0:
            yield f"{name} // {one // first}", (name,)
        if first != one:
            yield f"{name} {'+' if first > one else '-'} {abs(first - one)}", (name,)
    for a in known:
        for b in known:
            product, difference = known[a][0] * known[b][0], known[a][0] - known[b][0]
            if a <= b and first % product == 0:
                factor = first // product
                yield f"{a} * {b}" if factor == 1 else f"{factor} * {a} * {b}", (a, b)
            if a != b:
                yield f"{a} // {b}", (a, b)
                rest = first - difference
                yield f"{a} - {b} + {rest}" if rest > 0 else f"{a} - {b} - {-rest}", (a, b)
                rest = first - known[a][0] - known[b][0]
                if a < b:
                    yield f"{a} + {b} + {rest}" if rest >= 0 else f"{a} + {b} - {-rest}", (a, b)
