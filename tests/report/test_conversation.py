"""What a run says of its models and of its judge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from mctskernel.core.edit import Category, Edit, WholeSource
from mctskernel.core.proposer import Dropped, Exchange, Loss, ProposalRequest, Proposals, Purpose
from mctskernel.report.conversation import conversation, conversation_sentences
from mctskernel.report.judgements import judgement_sentences, judgements
from mctskernel.run import Budget
from mctskernel.search import Search
from mctskernel.tree.blobs import MemoryBlobs
from mctskernel.tree.events import DroppedRecord, ExchangeRecord, Proposed
from mctskernel.tree.journal import MemoryJournal
from mctskernel.tree.node import Tree
from mctskernel.tree.policy import Policy
from mctskernel.tree.search import TreeSearch
from tests import landscape

GOOD, BAD, BROKEN = (2, 1), (0, 1), (7, 3)
"""Next to the start, at (1, 1): nearer to the bottom, further from it, and a hole."""


def searched(promises: Mapping[tuple[int, int], float | None]) -> tuple[Tree, MemoryJournal]:
    """A search that tries what a model proposed of the root, judged so."""

    class Model:
        name = "llm/memory"

        def propose(self, request: ProposalRequest) -> Proposals:
            if request.node or request.offered:
                return Proposals(())
            edits = [
                Edit(Category.TUNING, str(at), WholeSource(landscape.kernel(*at).source), proposer=self.name)
                for at in promises
            ]
            judged = zip(edits, promises.values(), strict=True)
            exchange = Exchange(
                Purpose.PROPOSE,
                "m",
                "[]",
                "text",
                input_tokens=1000,
                output_tokens=50,
                dollars=0.125,
            )
            return Proposals(
                tuple(replace(edit, promise=promise, exchange=0) for edit, promise in judged),
                exchanges=(exchange, replace(exchange, reply="", problem="It was away.")),
                dropped=(Dropped(Loss.AMBIGUOUS, "fits twice"), Dropped(Loss.AMBIGUOUS, "fits twice")),
            )

    journal = MemoryJournal()
    search = Search(
        tree_search=TreeSearch(Tree(), journal, MemoryBlobs(), clock=lambda: 0.0),
        task=landscape.task(),
        proposer=Model(),
        executor=landscape.InProcess(),
        budget=Budget(evaluations=20),
        follow=lambda _: None,
    )
    policy = Policy(strategy="mcts", widening="unlimited")
    search.run((search.tree_search.start(search.task.starting_kernel, policy, 0),))
    return search.tree_search.tree, journal


def test_a_judge_that_is_right() -> None:
    tree, _ = searched({GOOD: 0.9, BAD: 0.2, BROKEN: 0.1})
    assert sum(each.is_gain for each in judgements(tree)) == 1
    (sentence,) = judgement_sentences(tree)
    assert "1 of 1 edits that it found likely to help did, and 0 of 2 others" in sentence
    assert "of 3 pairs of edits of one node it put 3 in the right order" in sentence


def test_a_judge_that_is_wrong() -> None:
    tree, _ = searched({GOOD: 0.1, BAD: 0.6, BROKEN: 0.9})
    (sentence,) = judgement_sentences(tree)
    assert "0 of 2 edits that it found likely to help did, and 1 of 1 others" in sentence
    assert "it put 0 in the right order" in sentence


def test_a_judge_that_finds_all_alike_is_half_right() -> None:
    tree, _ = searched({GOOD: 0.5, BAD: 0.5})
    assert "of 1 pairs of edits of one node it put 0.5 in" in judgement_sentences(tree)[0]


def test_without_a_judge_nothing_is_said() -> None:
    tree, _ = searched({GOOD: None, BAD: None})
    assert judgement_sentences(tree) == ()


def test_calls_and_losses_are_counted() -> None:
    tree, journal = searched({GOOD: None, BAD: None, BROKEN: None})
    found = conversation(journal.events)
    assert found.dollars == pytest.approx(0.25)
    assert found.losses == {Loss.AMBIGUOUS: 2}
    calls, edits, lost = conversation_sentences(found, tree)
    assert calls == "2 calls of models, 1 answered: 2000 tokens read, 100 written, $0.2500."
    assert edits == "3 edits of theirs: 2 ok, 1 build error."
    assert lost == "Lost before they could be tried: 2 patch fits in several places."


def test_why_nobody_answered_is_said() -> None:
    silent = [
        Proposed(0, (), dropped=(DroppedRecord(Loss.NO_REPLY, f"The server was {word}."),), at=0.0)
        for word in ("busy", "away")
    ]
    found = conversation(silent)
    asked = replace(found, exchanges=(ExchangeRecord(Purpose.PROPOSE, "m", "", problem="It was away."),))
    lines = conversation_sentences(asked, Tree())
    assert lines[-1] == "Why there was no reply, the last time: The server was away."


def test_a_run_without_models_says_nothing_of_them() -> None:
    assert conversation_sentences(conversation(()), Tree()) == ()
