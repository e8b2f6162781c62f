"""The frontier: what may be tried next in a tree, gathered by what it would decide."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mctskernel.tree.edit_model.descriptions import UNKNOWN, Row, Vocabulary, describe, factors_of
from mctskernel.tree.node import UNTRIED, Node, Tree
from mctskernel.tree.vector import Vector


@dataclass(frozen=True, slots=True)
class Candidate:
    """Edit number `edit` of a node, or whatever a proposer may yet come up with there (None)."""

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

    `rows` says what each node of the tree decides. `columns` are the different things that may be tried next, with
    `is_open`, false while none of the candidates that would decide that can be tried, or a node that decides it exists,
    and `prior`, the greatest of these candidates, as a share of the greatest of its node.
    """

    def __init__(self) -> None:
        self.vocabulary = Vocabulary()
        self.rows: list[Row] = []
        self._known: set[Row] = set()
        self._replies = self._evaluations = 0
        self._taken: list[Candidate] = []
        self._clear()

    def follow(self, tree: Tree) -> list[int]:
        """Takes in what has happened since; says to which nodes."""
        replied = tree.replied[self._replies :]
        for number in dict.fromkeys(replied):
            self.vocabulary.learn(factor for edit in tree.nodes[number].edits for factor in factors_of(edit))
        touched = [*replied, *tree.evaluated[self._evaluations :]]
        self._replies, self._evaluations = len(tree.replied), len(tree.evaluated)
        for number in range(len(self.rows), len(tree.nodes)):
            row = describe(tree, number, self.vocabulary, self.rows)
            self.rows.append(row)
            self._known.add(row)
            if (column := self._places.get(row)) is not None:
                self.is_open[column] = False
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
        """The candidate of the fastest node that would decide this and can be tried now; closed if there is none."""
        found = [each for each in self._candidates[column] if each.is_open(tree)]
        if not found:
            self.is_open[column] = False
            return None
        rewards = tree.node_statistics.reward
        best = min(found, key=lambda each: (-rewards[each.node], each.node, each.edit or 0))
        self.watch(best)
        return best

    def watch(self, candidate: Candidate) -> None:
        """Looks at a candidate again when the tree is followed next: it may have been tried, to no avail."""
        self._taken.append(candidate)

    def age(self, column: int) -> tuple[int, int]:
        """Orders columns by their oldest candidate."""
        return min((each.node, each.edit or 0) for each in self._candidates[column])

    def shrink(self, tree: Tree, most: int) -> None:
        """Forgets columns that are closed, and of a larger frontier what the slower nodes offer."""
        kept = np.flatnonzero(self.is_open.view).tolist()
        if len(kept) > most:
            worth = [
                max(tree.node_statistics.reward[each.node] for each in self._candidates[column])
                for column in kept
            ]
            kept = sorted(np.array(kept)[np.argsort(-np.array(worth), kind="stable")[:most]].tolist())
        columns, candidates, priors = self.columns, self._candidates, self.prior.view.tolist()
        self._clear()
        for column in kept:
            self._places[columns[column]] = len(self.columns)
            self.columns.append(columns[column])
            self._candidates.append(candidates[column])
            self.is_open.append(True)
            self.prior.append(priors[column])

    def _clear(self) -> None:
        self.columns: list[Row] = []
        self.is_open = Vector("bool")
        self.prior = Vector("float64")
        self._places: dict[Row, int] = {}
        self._candidates: list[dict[Candidate, float]] = []

    def _open(self, tree: Tree, node: Node) -> None:
        if not node.ready:
            return
        greatest = max(node.priors, default=1.0)
        for candidate in _candidates(node):
            row = self._row(tree, candidate)
            if row not in self._known:
                prior = 1.0 if candidate.edit is None else node.priors[candidate.edit] / greatest
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

    def _drop(self, tree: Tree, candidate: Candidate) -> None:
        column = self._places.get(self._row(tree, candidate))
        if column is not None and candidate in self._candidates[column]:
            del self._candidates[column][candidate]
            self.prior[column] = max(self._candidates[column].values(), default=0.0)
            self.is_open[column] = self.is_open[column] and bool(self._candidates[column])

    def _row(self, tree: Tree, candidate: Candidate) -> Row:
        if candidate.edit is None:
            return self.vocabulary.row(self.rows[candidate.node], (UNKNOWN,))
        edit = tree.nodes[candidate.node].edits[candidate.edit]
        return self.vocabulary.row(self.rows[candidate.node], factors_of(edit))


def _candidates(node: Node) -> Iterator[Candidate]:
    if not node.untried:
        yield Candidate(node.id, None)
    for edit in node.untried:
        yield Candidate(node.id, edit)
