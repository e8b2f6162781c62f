"""Descriptions: what a kernel decides, as a row of numbers with one place for each factor of the tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from mctskernel.core.edit import Factor, decided
from mctskernel.tree.events import EditRecord
from mctskernel.tree.node import Tree
from mctskernel.tree.vector import Array

Row = Sequence[int]
"""The codes of the levels that a kernel decides, in the order of the factors; what it doesn't reach is unset."""

UNSET = 0
"""The code of a factor that nothing has decided yet."""

UNKNOWN = Factor("?", 1.0)
"""What edits decide that nobody has proposed yet. No kernel that was evaluated has it, so nothing is known of it."""


def factors_of(edit: EditRecord) -> tuple[Factor, ...]:
    """What an edit of a tree decides."""
    return decided(edit.category, edit.title, edit.factors)


class Vocabulary:
    """The factors of a tree and their levels, each numbered in the order in which it was met; `UNSET` comes first."""

    def __init__(self) -> None:
        self._factors: dict[str, int] = {}
        self._codes: list[dict[float | str, int]] = []
        self.learn((UNKNOWN,))

    @property
    def order(self) -> list[int]:
        """The factors' numbers in the order of their names."""
        return [self._factors[name] for name in sorted(self._factors)]

    def __len__(self) -> int:
        return len(self._factors)

    def learn(self, factors: Iterable[Factor]) -> None:
        """Numbers factors and levels that are new."""
        for factor in factors:
            self._code(factor)

    def row(self, base: Row, factors: Iterable[Factor]) -> Row:
        """A description that differs from another by what is decided; it may be longer."""
        row = list(base)
        for place, code in map(self._code, factors):
            row.extend([UNSET] * (place + 1 - len(row)))
            row[place] = code
        while row and row[-1] == UNSET:
            row.pop()
        return tuple(row)

    def levels(self, place: int) -> list[float | str]:
        """The levels of a factor by their codes, from 1 on."""
        return list(self._codes[place])

    @property
    def ordered_levels(self) -> int:
        """How many levels there are of factors with so many that their order matters."""
        return sum(len(codes) for codes in self._codes if len(codes) > 2)

    def _code(self, factor: Factor) -> tuple[int, int]:
        """The factor's number and its level's."""
        place = self._factors.setdefault(factor.name, len(self._factors))
        if place == len(self._codes):
            self._codes.append({})
        codes = self._codes[place]
        return place, codes.setdefault(factor.level, len(codes) + 1)


def table(rows: Sequence[Row], width: int) -> Array:
    """Descriptions as a table of codes, what they don't reach to unset."""
    filled = np.full((len(rows), width), UNSET, dtype=np.intp)
    for target, row in zip(filled, rows, strict=True):
        target[: len(row)] = row
    return filled


def describe(tree: Tree, node: int, vocabulary: Vocabulary, rows: Sequence[Row]) -> Row:
    """What a node decides: what its parent does, whose row is among `rows`, but for what its edit changed."""
    found = tree.nodes[node]
    if found.parent is None or found.edit is None:
        return vocabulary.row((), found.kernel.factors)
    return vocabulary.row(rows[found.parent], factors_of(tree.nodes[found.parent].edits[found.edit]))


def positions(levels: Sequence[float | str]) -> Array | None:
    """Where levels lie from 0, the least, to 1, the greatest, evenly; None if they have no order."""
    if len(levels) < 2 or not all(isinstance(level, int | float) for level in levels):
        return None
    ranks = np.argsort(np.argsort(np.array(levels, dtype=np.float64)))
    return ranks / (len(levels) - 1)
