"""Proposers that take long: the search goes on meanwhile, and ends when it should."""

import threading
from dataclasses import dataclass, field
from typing import cast

from mctskernel.core.budget import Budget
from mctskernel.core.proposer import Dropped, Loss, ProposalRequest, Proposals
from mctskernel.edits.async_proposer import ThreadedProposer
from mctskernel.loop import SILENCES, Search, StopReason
from mctskernel.tree.blobs import MemoryBlobs
from mctskernel.tree.events import Proposed, Requested
from mctskernel.tree.journal import MemoryJournal
from mctskernel.tree.node import Tree
from mctskernel.tree.replay import replay
from mctskernel.tree.search import TreeSearch
from tests import landscape

HANG_SECONDS = 60.0


@dataclass
class Gate(landscape.Neighbours):
    """Answers about a node when it is let to."""

    open_for: set[int] = field(default_factory=set)
    asked: list[int] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    def propose(self, request: ProposalRequest) -> Proposals:
        self.asked.append(request.node)
        if request.node not in self.open_for:
            assert self.released.wait(HANG_SECONDS)
        self.answered.append(request.node)
        return super().propose(request)


def searching(
    proposer: landscape.Neighbours,
    budget: Budget,
    capacity: int = 2,
    blobs: MemoryBlobs | None = None,
    **options: object,
) -> tuple[Search, MemoryJournal]:
    journal = MemoryJournal()
    search = landscape.search(
        budget,
        landscape.InProcess(2),
        TreeSearch(Tree(), journal, blobs or MemoryBlobs(), clock=lambda: 0.0),
        proposer=proposer,
        async_proposer=ThreadedProposer(proposer, capacity),
        **options,
    )
    return search, journal


def run(search: Search) -> StopReason:
    return search.run((landscape.start(search),))


def test_evaluations_go_on_while_a_reply_is_awaited() -> None:
    proposer = Gate(open_for={0})
    judged: list[int] = []

    def is_stopping() -> bool:
        if any(proposer.asked):
            judged.append(len(executor.judged))
        return bool(judged) and judged[-1] > judged[0]

    search, _ = searching(proposer, Budget(evaluations=60), stop_requested=is_stopping)
    executor = cast("landscape.InProcess", search.executor)
    assert run(search) is StopReason.INTERRUPTED


def test_no_more_requests_wait_than_may() -> None:
    proposer, polls = Gate(open_for={0}), iter(range(6))

    def is_stopping() -> bool:
        return len([node for node in proposer.asked if node]) >= 2 and next(polls, None) is None

    search, journal = searching(proposer, Budget(evaluations=60), capacity=2, stop_requested=is_stopping)
    run(search)
    assert len([node for node in proposer.asked if node]) == 2, "two that hang"
    assert not replay(journal.events).requested


def test_a_stop_request_does_not_wait_for_replies() -> None:
    proposer = Gate()
    search, journal = searching(proposer, Budget(evaluations=60), stop_requested=lambda: bool(proposer.asked))
    assert run(search) is StopReason.INTERRUPTED
    assert not proposer.answered, "the reply hangs still"
    last = journal.events[-1]
    assert isinstance(last, Proposed)
    assert [each.loss for each in last.dropped] == [Loss.NO_REPLY], "every request is accounted for"
    assert search.tree_search.tree.nodes[0].ready, "asked again, the node may have edits"


def test_replies_that_are_paid_for_are_waited_for_when_the_budget_is_spent() -> None:
    proposer = Gate(open_for={0})
    search, journal = searching(
        proposer,
        Budget(evaluations=3),
        follow=lambda state: state.evaluations >= 3 and proposer.released.set(),
    )
    assert run(search) is StopReason.BUDGET
    replies = [event for event in journal.events if isinstance(event, Proposed)]
    assert all(reply.edits for reply in replies)
    assert len(replies) == len([event for event in journal.events if isinstance(event, Requested)])


def test_a_model_that_never_answers_ends_the_search_which_can_be_resumed() -> None:
    class Silent(landscape.Neighbours):
        silent = True

        def propose(self, request: ProposalRequest) -> Proposals:
            if self.silent:
                reason = Dropped(Loss.NO_REPLY, "The server answered 503 four times.")
                return Proposals((), dropped=(reason,))
            return super().propose(request)

    proposer, blobs = Silent(), MemoryBlobs()
    search, journal = searching(proposer, Budget(evaluations=20), blobs=blobs)
    assert run(search) is StopReason.SILENCE
    assert len([event for event in journal.events if isinstance(event, Proposed)]) == SILENCES
    proposer.silent = False
    again, _ = searching(proposer, Budget(evaluations=20))
    again.tree_search = TreeSearch(replay(journal.events), MemoryJournal(), blobs)
    assert again.run(again.tree_search.resume()) is StopReason.BUDGET
