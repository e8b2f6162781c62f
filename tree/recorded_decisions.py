"""A recorded search made again: the same edits proposed and tried in the same order, whatever comes of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import msgspec

from mctskernel.core.proposer import Proposals
from mctskernel.tree.blobs import Blobs, get_edit, get_exchange
from mctskernel.tree.events import Duplicated, Event, Proposed, Refused, Submitted
from mctskernel.tree.search import TreeSearch
from mctskernel.tree.strategies.strategy import Step

Decision = Proposed | Submitted | Duplicated | Refused


class RecordedDecisions:
    """The replies about some nodes of a recorded search and the edits that made them: `next` in place of a policy.

    `nodes` are in order, each with its parent. `made` events of those that the search has made already, before it was
    resumed, are passed over. Where an edit makes another kernel than it made then, the decisions end.
    """

    def __init__(
        self, recorded: Iterable[Event], blobs: Blobs, nodes: Sequence[int], made: Iterable[Event]
    ) -> None:
        count = sum(1 for event in made if _about(event) is not None)
        self._left = deque(islice(_numbered_anew(recorded, nodes), count, None))
        self._blobs = blobs
        self._submitted: Submitted | None = None

    @property
    def are_left(self) -> bool:
        """Whether a kernel is still to be made."""
        return any(isinstance(each, Submitted) for each in self._left)

    def next(self, search: TreeSearch) -> Step | None:
        """What to do next; None before the node that it is about is evaluated, and at the end."""
        nodes, expected = search.tree.nodes, self._submitted
        if expected is not None and (
            len(nodes) <= expected.node or nodes[expected.node].kernel.identity != expected.kernel.identity
        ):
            return None
        while self._left:
            event = self._left[0]
            node = _about(event) or 0
            if node >= len(nodes) or nodes[node].evaluation is None:
                return None
            self._left.popleft()
            if not isinstance(event, Proposed):
                self._submitted = event if isinstance(event, Submitted) else None
                return Step(node, event.edit or 0)
            search.propose(node, self._proposals(event))
        return None

    def _proposals(self, event: Proposed) -> Proposals:
        exchanges = (get_exchange(self._blobs, each) for each in event.exchanges)
        return Proposals(
            tuple(get_edit(self._blobs, each) for each in event.edits),
            more=event.more,
            exchanges=tuple(msgspec.structs.replace(each, recorded=True, dollars=0.0) for each in exchanges),
            dropped=event.dropped,
        )


def _numbered_anew(events: Iterable[Event], nodes: Sequence[int]) -> Iterator[Decision]:
    """The decisions about these nodes, by the numbers that they get now."""
    numbers = {old: new for new, old in enumerate(nodes)}
    for event in events:
        match event:
            case Submitted(node=node, parent=int(parent)) if node in numbers:
                yield msgspec.structs.replace(event, node=numbers[node], parent=numbers[parent])
            case Duplicated(node=node, of=known) if node in numbers and known in numbers:
                yield msgspec.structs.replace(event, node=numbers[node], of=numbers[known])
            case Proposed(node=node) | Refused(node=node) if node in numbers:
                yield msgspec.structs.replace(event, node=numbers[node])


def _about(event: Event) -> int | None:
    """The node whose edits a decision is about; None for what is no decision."""
    if isinstance(event, Submitted):
        return event.parent
    return event.node if isinstance(event, Proposed | Duplicated | Refused) else None
