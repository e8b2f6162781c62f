"""The frontier: what may be tried next in a tree, grouped by what it would decide, and descriptions of kernels."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mctskernel.core.edit import Factor
from mctskernel.tree.events import EditRecord
from mctskernel.tree.node import UNTRIED, Node, Tree

Row = tuple[int, ...]
"""A description: the codes of the levels that a kernel decides, by factor; what it doesn't reach is unset."""

UNSET = 0  # the code of a factor that isn't decided yet

UNKNOWN = Factor("?", "?")
"""What edits decide that haven't been proposed yet. No evaluated kernel has it, so nothing is known of it."""


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

    @property
    def ordered_levels(self) -> int:
        """How many levels there are of factors with so many that their order matters."""
        return sum(len(codes) for codes in self._codes if len(codes) > 1)

    @property
    def levels_known(self) -> int:
        return sum(map(len, self._codes))

    def __len__(self) -> int:
        return len(self._factors)

    def learn(self, factors: Iterable[Factor]) -> None:
        """Number factors and levels that are new."""
        for factor in factors:
            self._code(factor)

    def row(self, base: Row, factors: Iterable[Factor]) -> Row:
        """A description that differs from another by what is decided; it may be longer."""
        row = list(base)
        for place, code in map(self._code, factors):
            row.extend([UNSET] * (place + 1 - len(row)))
            row[place] = code
        return tuple(row)

    def levels(self, place: int) -> list[float | str]:
        """The levels of a factor by their codes, from 1 on."""
        return list(self._codes[place])

    def _code(self, factor: Factor) -> tuple[int, int]:
        """The factor's number and its level's."""
        place = self._factors.setdefault(factor.name, len(self._factors))
        if place == len(self._codes):
            self._codes.append({})
        codes = self._codes[place]
        return place, codes.setdefault(factor.level, len(codes) + 1)


def table(rows: Sequence[Row], width: int) -> npt.NDArray[Any]:
    """Descriptions as an array of codes, one row each, unset where they don't reach."""
    filled = np.full((len(rows), width), UNSET, dtype=np.intp)
    for target, row in zip(filled, rows, strict=True):
        target[: len(row)] = row
    return filled


@dataclass(frozen=True, slots=True)
class Candidate:
    """Edit number `edit` of a node, or an edit that its proposer hasn't proposed yet (None)."""

    node: int
    edit: int | None

    def is_open(self, tree: Tree) -> bool:
        """Whether it can be tried now."""
        node = tree.nodes[self.node]
        if not node.ready:
            return False
        return not node.untried if self.edit is None else node.fates[self.edit] == UNTRIED


class Frontier:
    """Follows one tree. What is open in it depends on the tree alone, and not on when it was read.

    `rows` describe the nodes of the tree, `columns` the different kernels that may be tried next. A column is open
    (`is_open`) while one of the candidates that would make it can be tried and neither a node nor a duplicate has its
    description. Its `prior` is the greatest of its candidates', each as a fraction of the greatest of its node.
    """

    def __init__(self) -> None:
        self.vocabulary = Vocabulary()
        self.rows: list[Row] = []
        self._known: set[Row] = set()
        self._replies = self._evaluations = self._duplicates = 0
        self._taken: list[Candidate] = []
        self._clear()

    def update(self, tree: Tree) -> list[int]:
        """Take in what has happened since the last call; returns the nodes that it happened to."""
        replied = tree.replied[self._replies :]
        for number in dict.fromkeys(replied):
            self.vocabulary.learn(factor for edit in tree.nodes[number].edits for factor in edit.decisions)
        touched = [*replied, *tree.evaluated[self._evaluations :]]
        self._replies, self._evaluations = len(tree.replied), len(tree.evaluated)
        for node in tree.nodes[len(self.rows) :]:
            row = self._describe(tree, node)
            self.rows.append(row)
            self._close(row)
        for number, edit in tree.duplicated[self._duplicates :]:
            self._close(self._decided(self.rows[number], tree.nodes[number].edits[edit]))
        self._duplicates = len(tree.duplicated)
        for candidate in self._taken:
            if candidate.edit is not None and not candidate.is_open(tree):
                self._drop(tree, candidate)
        exhausted = [each.node for each in self._taken if not tree.nodes[each.node].untried]
        for number in dict.fromkeys((*touched, *exhausted)):
            self._open(tree, tree.nodes[number])
        touched += [candidate.node for candidate in self._taken]
        self._taken.clear()
        return touched

    def take(self, tree: Tree, column: int) -> Candidate | None:
        """The candidate of the fastest node in a column that can be tried now; closes the column if there is none."""
        found = [each for each in self._candidates[column] if each.is_open(tree)]
        if not found:
            self.is_open[column] = False
            return None
        best = min(found, key=lambda each: (-tree.nodes[each.node].reward, each.node, each.edit or 0))
        self.watch(best)
        return best

    def watch(self, candidate: Candidate) -> None:
        """Look at a candidate again at the next update: it may have been tried."""
        self._taken.append(candidate)

    def age(self, column: int) -> tuple[int, int]:
        """Orders columns by their oldest candidate."""
        return min((each.node, each.edit or 0) for each in self._candidates[column])

    def shrink(self, tree: Tree, most: int) -> list[int]:
        """Forget closed columns and those of slower nodes beyond `most`; returns the former numbers of the rest."""
        kept = [column for column, is_open in enumerate(self.is_open) if is_open]
        if len(kept) > most:
            rewards = {
                column: max(tree.nodes[each.node].reward for each in self._candidates[column])
                for column in kept
            }
            kept = sorted(sorted(kept, key=lambda column: -rewards[column])[:most])
        columns, candidates, priors = self.columns, self._candidates, self.prior
        self._clear()
        for column in kept:
            self._places[columns[column]] = len(self.columns)
            self.columns.append(columns[column])
            self._candidates.append(candidates[column])
            self.is_open.append(True)
            self.prior.append(priors[column])
        return kept

    def _clear(self) -> None:
        self.columns: list[Row] = []
        self.is_open = array("b")
        self.prior = array("d")
        self._places: dict[Row, int] = {}
        self._candidates: list[dict[Candidate, float]] = []

    def _describe(self, tree: Tree, node: Node) -> Row:
        edit = tree.made_by(node)
        if edit is None or node.parent is None:
            return self.vocabulary.row((), node.kernel.factors)
        return self._decided(self.rows[node.parent], edit)

    def _open(self, tree: Tree, node: Node) -> None:
        if not node.ready:
            return
        greatest = max((edit.prior for edit in node.edits), default=1.0)
        for candidate in _candidates(node):
            row = self._row(tree, candidate)
            if row not in self._known:
                prior = 1.0 if candidate.edit is None else node.edits[candidate.edit].prior / greatest
                self._add(row, candidate, prior)

    def _add(self, row: Row, candidate: Candidate, prior: float) -> None:
        column = self._places.setdefault(row, len(self.columns))
        if column == len(self.columns):
            self.columns.append(row)
            self._candidates.append({})
            self.is_open.append(True)
            self.prior.append(prior)
        self._candidates[column][candidate] = prior
        self.is_open[column] = True
        self.prior[column] = max(self._candidates[column].values())

    def _close(self, row: Row) -> None:
        """A kernel of this description is known."""
        self._known.add(row)
        if (column := self._places.get(row)) is not None:
            self.is_open[column] = False

    def _drop(self, tree: Tree, candidate: Candidate) -> None:
        column = self._places.get(self._row(tree, candidate))
        if column is not None and candidate in self._candidates[column]:
            del self._candidates[column][candidate]
            self.prior[column] = max(self._candidates[column].values(), default=0.0)
            self.is_open[column] &= bool(self._candidates[column])

    def _row(self, tree: Tree, candidate: Candidate) -> Row:
        if candidate.edit is None:
            return self.vocabulary.row(self.rows[candidate.node], (UNKNOWN,))
        return self._decided(self.rows[candidate.node], tree.nodes[candidate.node].edits[candidate.edit])

    def _decided(self, base: Row, edit: EditRecord) -> Row:
        """The description of a kernel that an edit makes. A step that is made once more decides something new."""
        row = self.vocabulary.row(base, edit.decisions)
        if row != base or edit.factors:
            return row
        return self.vocabulary.row(base, (Factor(edit.title, edit.change),))


def _candidates(node: Node) -> Iterator[Candidate]:
    if not node.untried:
        yield Candidate(node.id, None)
    for edit in node.untried:
        yield Candidate(node.id, edit)
