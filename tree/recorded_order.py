"""A recorded search made again: its results in their order, or its decisions whatever the results are."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice

import msgspec

from mctskernel.core.evaluation import Evaluation
from mctskernel.core.proposer import Proposals
from mctskernel.tree.blobs import BlobStore, get_edit, get_exchange
from mctskernel.tree.events import (
    Duplicated,
    Evaluated,
    Event,
    Proposed,
    Refused,
    Requested,
    Resumed,
    Submitted,
)
from mctskernel.tree.node import Tree
from mctskernel.tree.search import Action, Exhausted, TreeSearch, Try, Wait


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


class RecordedDecisions:
    """The replies and the edits of a recorded search, in its order: `next` in place of a policy.

    For runs whose edits came from another program, which can't be asked again. `made` events of those that the search
    has made already, before it was resumed, are passed over.
    """

    def __init__(self, recorded: Iterable[Event], blobs: BlobStore, made: Iterable[Event]) -> None:
        self._left = deque(islice(filter(_is_decision, recorded), sum(map(_is_decision, made)), None))
        self._blobs = blobs

    def next(self, search: TreeSearch) -> Action:
        """What to do next, once the node that it is about is evaluated."""
        while self._left:
            event = self._left[0]
            node = _node_of(event)
            if node >= len(search.tree.nodes) or search.tree.nodes[node].evaluation is None:
                return Wait()
            self._left.popleft()
            if isinstance(event, Proposed):
                search.propose(node, self._proposals(event))
            elif isinstance(event, Submitted | Duplicated | Refused):
                number = event.edit or 0
                return Try(node, number, search.edit(node, number))
        return Exhausted()

    def _proposals(self, event: Proposed) -> Proposals:
        exchanges = (get_exchange(self._blobs, each) for each in event.exchanges)
        return Proposals(
            tuple(get_edit(self._blobs, each) for each in event.edits),
            more=event.more,
            exchanges=tuple(msgspec.structs.replace(each, recorded=True, dollars=0.0) for each in exchanges),
            dropped=event.dropped,
        )


def _is_decision(event: Event) -> bool:
    is_edit = isinstance(event, Submitted) and event.parent is not None
    return is_edit or isinstance(event, Proposed | Duplicated | Refused)


def _node_of(event: Event) -> int:
    if isinstance(event, Submitted):
        return event.parent or 0
    assert isinstance(event, Proposed | Duplicated | Refused)  # noqa: S101 - the other decisions
    return event.node
