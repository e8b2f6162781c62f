"""A recorded search made again: the same edits proposed and tried in the same order, whatever comes of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice

import msgspec

from mctskernel.core.proposer import Proposals
from mctskernel.tree.blobs import BlobStore, get_edit, get_exchange
from mctskernel.tree.events import Duplicated, Event, Proposed, Refused, Submitted
from mctskernel.tree.node import Tree
from mctskernel.tree.search import Action, TreeSearch, Try


class RecordedDecisions:
    """The replies and the edits of a recorded search, in its order: `next` in place of a policy.

    `made` events of those that the search has made already, before it was resumed, are passed over. Where an edit makes
    another kernel than it made then, the decisions end.
    """

    def __init__(self, recorded: Iterable[Event], blobs: BlobStore, made: Iterable[Event]) -> None:
        self._left = deque(islice(filter(_is_decision, recorded), sum(map(_is_decision, made)), None))
        self._blobs = blobs
        self._submitted: Submitted | None = None

    @property
    def are_left(self) -> bool:
        return bool(self._left)

    def next(self, search: TreeSearch) -> Action | None:
        """What to do next; None before the node that it is about is evaluated, and at the end."""
        if self._submitted is not None and not _has(search.tree, self._submitted):
            return None
        while self._left:
            event = self._left[0]
            node = _node_of(event)
            if node >= len(search.tree.nodes) or search.tree.nodes[node].evaluation is None:
                return None
            self._left.popleft()
            if isinstance(event, Proposed):
                search.propose(node, self._proposals(event))
            elif isinstance(event, Submitted | Duplicated | Refused):
                self._submitted = event if isinstance(event, Submitted) else None
                number = event.edit or 0
                return Try(node, number, search.edit(node, number))
        return None

    def _proposals(self, event: Proposed) -> Proposals:
        exchanges = (get_exchange(self._blobs, each) for each in event.exchanges)
        return Proposals(
            tuple(get_edit(self._blobs, each) for each in event.edits),
            more=event.more,
            exchanges=tuple(msgspec.structs.replace(each, recorded=True, dollars=0.0) for each in exchanges),
            dropped=event.dropped,
        )


def _has(tree: Tree, event: Submitted) -> bool:
    """Whether a tree has the node of an event."""
    return len(tree.nodes) > event.node and tree.nodes[event.node].kernel.identity == event.kernel.identity


def _is_decision(event: Event) -> bool:
    is_edit = isinstance(event, Submitted) and event.parent is not None
    return is_edit or isinstance(event, Proposed | Duplicated | Refused)


def _node_of(event: Event) -> int:
    if isinstance(event, Submitted):
        return event.parent or 0
    assert isinstance(event, Proposed | Duplicated | Refused)  # noqa: S101 - the other decisions
    return event.node
