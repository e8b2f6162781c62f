"""Proposers that take long: the search goes on meanwhile, and ends when it should."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import cast

import pytest

from mctskernel.core.proposer import Dropped, Loss, ProposalRequest, Proposals
from mctskernel.correspondence import Correspondents, Mailbox
from mctskernel.run import Budget
from mctskernel.search import SILENCES, Ending, Search
from mctskernel.tree.blobs import MemoryBlobs
from mctskernel.tree.events import Asked, Proposed
from mctskernel.tree.fold import fold
from mctskernel.tree.journal import MemoryJournal
from mctskernel.tree.node import Tree
from mctskernel.tree.policy import Policy
from mctskernel.tree.search import TreeSearch
from tests import landscape

HANG_SECONDS = 60.0


@dataclass
class Gate(landscape.Neighbours):
    """Answers about a node when it is let to."""

    open_for: set[int] = field(default_factory=set)
    asked: list[int] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    def propose(self, request: ProposalRequest) -> Proposals:
        self.asked.append(request.node)
        if request.node not in self.open_for:
            self.released.wait(HANG_SECONDS)
        return super().propose(request)


def searching(
    proposer: landscape.Neighbours, budget: Budget, capacity: int = 2, **options: object
) -> tuple[Search, MemoryJournal]:
    journal = MemoryJournal()
    search = Search(
        tree_search=TreeSearch(Tree(), journal, MemoryBlobs(), clock=lambda: 0.0),
        task=landscape.task(),
        proposer=proposer,
        executor=landscape.InProcess(2),
        budget=budget,
        follow=lambda _: None,
        correspondence=Correspondents(proposer, capacity),
        **options,  # type: ignore[arg-type]
    )
    return search, journal


def run(search: Search, policy: Policy | None = None) -> Ending:
    policy = policy or Policy(strategy="mcts")
    return search.run((search.tree_search.start(search.task.starting_kernel, policy, 0),))


def test_finds_what_a_search_with_immediate_replies_finds() -> None:
    search, journal = searching(landscape.Neighbours(), Budget(evaluations=60))
    assert run(search) is Ending.BUDGET
    assert search.tree_search.tree.evaluations == 60
    assert search.tree_search.tree.high == pytest.approx(3.6, abs=0.1), "the bottom of the bowl"
    assert len([e for e in journal.events if isinstance(e, Asked)]) == len(
        [e for e in journal.events if isinstance(e, Proposed)]
    )


def test_evaluations_go_on_while_a_reply_is_awaited() -> None:
    proposer = Gate(open_for={0})
    judged_when_asked: list[int] = []

    def is_stopping() -> bool:
        if len(proposer.asked) > len(judged_when_asked):
            judged_when_asked.append(len(executor.judged))
        return time.monotonic() > deadline

    deadline = time.monotonic() + 0.5
    search, _ = searching(proposer, Budget(evaluations=60), stop_requested=is_stopping)
    executor = cast("landscape.InProcess", search.executor)
    assert run(search) is Ending.INTERRUPTED
    first_that_hangs = next(place for place, node in enumerate(proposer.asked) if node)
    assert len(executor.judged) > judged_when_asked[first_that_hangs]


def test_no_more_requests_wait_than_may() -> None:
    proposer = Gate(open_for={0})
    deadline = time.monotonic() + 0.5
    search, journal = searching(
        proposer, Budget(evaluations=60), capacity=2, stop_requested=lambda: time.monotonic() > deadline
    )
    run(search)
    assert len([node for node in proposer.asked if node]) == 2, "two that hang"
    assert not fold(journal.events).awaiting


def test_a_stop_request_does_not_wait_for_replies() -> None:
    proposer = Gate()
    began = time.monotonic()
    search, journal = searching(
        proposer, Budget(evaluations=60), stop_requested=lambda: time.monotonic() > began + 0.2
    )
    assert run(search) is Ending.INTERRUPTED
    assert time.monotonic() - began < 2
    last = journal.events[-1]
    assert isinstance(last, Proposed)
    assert [each.loss for each in last.dropped] == [Loss.NO_REPLY], "every request is accounted for"
    assert search.tree_search.tree.nodes[0].ready, "asked again, the node may have edits"


def test_replies_that_are_paid_for_are_waited_for_when_the_budget_is_spent() -> None:
    class Late(landscape.Neighbours):
        def propose(self, request: ProposalRequest) -> Proposals:
            if request.node:
                time.sleep(0.3)
            return super().propose(request)

    search, journal = searching(Late(), Budget(evaluations=3))
    assert run(search) is Ending.BUDGET
    replies = [event for event in journal.events if isinstance(event, Proposed)]
    assert all(reply.edits for reply in replies)
    assert len(replies) == len([event for event in journal.events if isinstance(event, Asked)])


def test_a_model_that_never_answers_ends_the_search_which_can_be_resumed() -> None:
    class Silent(landscape.Neighbours):
        silent = True

        def propose(self, request: ProposalRequest) -> Proposals:
            if self.silent:
                reason = Dropped(Loss.NO_REPLY, "The server answered 503 four times.")
                return Proposals((), dropped=(reason,))
            return super().propose(request)

    proposer = Silent()
    search, journal = searching(proposer, Budget(evaluations=20))
    assert run(search) is Ending.SILENCE
    assert len([event for event in journal.events if isinstance(event, Proposed)]) == SILENCES
    proposer.silent = False
    again, _ = searching(proposer, Budget(evaluations=20))
    again.tree_search = TreeSearch(fold(journal.events), MemoryJournal(), search.tree_search._blobs)
    assert again.run(again.tree_search.resume()) is Ending.BUDGET


def test_a_search_stands_still_until_answers_from_outside_come() -> None:
    mailbox, outsider = Mailbox(3), landscape.Neighbours()
    search, _ = searching(outsider, Budget(evaluations=40))
    search.correspondence = mailbox
    assert run(search) is Ending.WAITING
    assert [request.node for request in mailbox.requests] == [0]
    assert search.run() is Ending.WAITING, "nothing changes by itself"
    most = 0
    while True:
        most = max(most, len(mailbox.requests))
        for request in mailbox.requests:
            mailbox.answer(request.node, outsider.propose(request))
        if (ending := search.run()) is not Ending.WAITING:
            break
    assert ending is Ending.BUDGET
    assert search.tree_search.tree.evaluations == 40
    assert most == 3, "several nodes are asked about at once"


def test_a_mistake_of_the_callers_is_raised_where_the_search_runs() -> None:
    class Broken(landscape.Neighbours):
        def propose(self, request: ProposalRequest) -> Proposals:
            raise LookupError("set OPENAI_API_KEY")

    search, _ = searching(Broken(), Budget(evaluations=20))
    with pytest.raises(LookupError, match="OPENAI_API_KEY"):
        run(search)
