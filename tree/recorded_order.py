"""The order in which results came in a recorded search."""

from __future__ import annotations

from collections.abc import Iterable

from mctskernel.core.evaluation import Evaluation
from mctskernel.core.proposer import Proposals
from mctskernel.tree.events import Evaluated, Event, Proposed, Requested, Resumed
from mctskernel.tree.node import Tree


class RecordedOrder:
    """The order in which results came in a recorded search, kept while a repetition makes the same decisions.

    With several evaluations and replies in flight, what a search does next depends on which is first. The event of the
    recorded journal with the number of the next event says what comes next: a decision of the search, or a result.
    """

    def __init__(self, recorded: Iterable[Event]) -> None:
        self._results: list[tuple[type, int] | None] = []
        self._is_diverged = False
        asked: set[int] = set()
        for event in recorded:
            result: tuple[type, int] | None = None
            match event:
                case Evaluated(node=node):
                    result = Evaluation, node
                case Proposed(node=node) if node in asked:
                    asked.discard(node)
                    result = Proposals, node
                case Requested(node=node):
                    asked.add(node)
                case Resumed():
                    asked.clear()
            self._results.append(result)

    def is_followed(self, tree: Tree) -> bool:
        """Whether the order is still that of the recorded search, which is not at its end."""
        return not self._is_diverged and tree.events < len(self._results)

    def due(self, tree: Tree) -> tuple[type, int] | None:
        """The kind and the node of the result that comes next; None if a decision does, or nothing is known."""
        if not self.is_followed(tree):
            return None
        due = self._results[tree.events]
        if due is not None and due[1] not in (tree.pending if due[0] is Evaluation else tree.requested):
            self._is_diverged = True
        return None if self._is_diverged else due

    def no_decision_was_made(self, tree: Tree) -> None:
        """Notes that the search waits for a result; it has diverged if the recorded one made a decision here."""
        self._is_diverged |= self.is_followed(tree) and self.due(tree) is None
