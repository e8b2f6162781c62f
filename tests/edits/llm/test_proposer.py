"""Proposers that ask a model: each reply becomes edits or losses; rules and experts share a bandit."""

import json
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mctskernel.core.edit import Category
from mctskernel.core.evaluation import Bottleneck, Outcome
from mctskernel.core.proposer import Exchange, Loss, ProposalRequest, Proposals, Purpose
from mctskernel.edits.llm.model import Call, encode
from mctskernel.edits.llm.proposer import REPAIRER, SILENCE, LLMProposer, MixedProposer
from mctskernel.edits.patch import apply
from mctskernel.edits.proposer import RuleProposer
from mctskernel.edits.rules import ALL
from tests.edits.llm.scripted import (
    FAILED,
    ScriptedModel,
    a_reply,
    a_request,
    an_edit,
    attempts,
    diagnosed,
    failing,
    titles,
)

SMALLER = an_edit("Smaller blocks", ("#define BLOCK 256\n", "#define BLOCK 128\n"))
LARGER = an_edit("Larger blocks", ("#define BLOCK 256\n", "#define BLOCK 512\n"))
NOWHERE = an_edit("Elsewhere", ("#define TILE 3\n", "#define TILE 4\n"))


def test_edits_carry_their_expert_and_the_exchange_that_they_came_from() -> None:
    model = ScriptedModel(lambda _: a_reply(SMALLER, LARGER))
    request = a_request(evaluation=diagnosed((Bottleneck.BANK_CONFLICTS, 1.0)), seed=3)
    reply = LLMProposer(model).propose(request)
    assert titles(reply.edits) == ["Smaller blocks", "Larger blocks"]
    (call,) = model.calls
    assert {edit.proposer for edit in reply.edits} == {f"llm/{call.expert}"}
    assert {edit.exchange for edit in reply.edits} == {0}
    assert apply(request.kernel, reply.edits[0]).macros["BLOCK"] == 128
    assert (call.purpose, call.subject) == (Purpose.PROPOSE, request.kernel.identity)
    assert call.schema is not None
    assert len(reply.exchanges) == 1
    assert reply.more
    assert not reply.dropped


def test_an_edit_that_fits_nowhere_goes_back_once_with_the_reason() -> None:
    def answer(call: Call) -> str:
        if call.purpose is Purpose.MEND:
            assert "Elsewhere" in call.messages[-1].content
            assert "Smaller" not in call.messages[-1].content
            return a_reply(LARGER)
        return a_reply(SMALLER, NOWHERE)

    model = ScriptedModel(answer)
    reply = LLMProposer(model).propose(a_request())
    assert [call.purpose for call in model.calls] == [Purpose.PROPOSE, Purpose.MEND]
    assert [(edit.title, edit.exchange) for edit in reply.edits] == [
        ("Smaller blocks", 0),
        ("Larger blocks", 1),
    ]
    assert [each.loss for each in reply.dropped] == [Loss.NO_MATCH]


@pytest.mark.parametrize("nonsense", ["Sure! Here is a faster kernel.", "{", '{"edits": 7}', "[1, 2, 3]"])
def test_an_unreadable_reply_goes_back_once(nonsense: str) -> None:
    model = ScriptedModel(lambda call: a_reply(LARGER) if call.purpose is Purpose.MEND else nonsense)
    reply = LLMProposer(model).propose(a_request())
    assert len(model.calls) == 2
    assert titles(reply.edits) == ["Larger blocks"]
    assert reply.dropped


def test_the_edits_of_a_reply_that_was_cut_off_are_kept() -> None:
    def answer(call: Call) -> Exchange:
        text = a_reply(SMALLER, LARGER)
        cut = text[: text.index("Larger") - 40]
        problem = "The reply reached the limit of 16 tokens."
        return Exchange(call.purpose, "m", encode(call.messages), cut, problem=problem, loss=Loss.CUT_OFF)

    reply = LLMProposer(ScriptedModel(answer)).propose(a_request())
    assert titles(reply.edits) == ["Smaller blocks"]
    assert [each.loss for each in reply.dropped] == [Loss.CUT_OFF]


def test_what_was_tried_is_dropped_unless_it_may_be_mended() -> None:
    siblings = attempts((" SMALLER  blocks.", Outcome.OK), ("Larger blocks", Outcome.BUILD_ERROR))
    model = ScriptedModel(lambda _: a_reply(SMALLER, LARGER))
    reply = LLMProposer(model).propose(a_request(siblings=siblings))
    assert titles(reply.edits) == ["Larger blocks"]
    assert [each.loss for each in reply.dropped] == [Loss.REPEATED]


def test_a_kernel_that_failed_is_repaired() -> None:
    model = ScriptedModel(lambda _: a_reply(SMALLER))
    lineage = attempts(("Online softmax", Outcome.WRONG_RESULT))
    reply = LLMProposer(model).propose(a_request(evaluation=FAILED, lineage=lineage))
    (edit,) = reply.edits
    assert (edit.category, edit.proposer, edit.exchange) == (Category.REPAIR, REPAIRER, 0)
    (call,) = model.calls
    assert (call.purpose, call.expert) == (Purpose.REPAIR, "")
    assert "out[3, 7] is 0.5, not 0.25." in call.messages[-1].content


@pytest.mark.parametrize("outcome", [Outcome.TIMEOUT, Outcome.REJECTED])
def test_what_no_edit_may_mend_costs_no_call(outcome: Outcome) -> None:
    model = ScriptedModel(lambda _: a_reply(SMALLER))
    reply = LLMProposer(model).propose(a_request(evaluation=replace(FAILED, outcome=outcome)))
    assert not model.calls
    assert not reply.edits


WRITTEN = st.sampled_from([SMALLER, LARGER, NOWHERE, {"title": 3}, {}, an_edit("", ("", ""))])


@given(
    first=st.lists(WRITTEN, max_size=8) | st.text(),
    second=st.lists(WRITTEN, max_size=3) | st.text(),
    cut=st.integers(0, 4000),
)
def test_whatever_a_model_says_is_accounted_for(first: object, second: object, cut: int) -> None:
    def answer(call: Call) -> str:
        said = second if call.purpose is Purpose.MEND else first
        return said if isinstance(said, str) else json.dumps({"edits": said})[:cut]

    model = ScriptedModel(answer)
    request = a_request()
    reply = LLMProposer(model).propose(request)
    assert len(reply.exchanges) == len(model.calls) <= 2
    assert reply.edits or reply.dropped
    assert all(apply(request.kernel, edit).identity != request.kernel.identity for edit in reply.edits)
    assert all(0 <= (edit.exchange or 0) < len(reply.exchanges) for edit in reply.edits)
    assert all(edit.prior > 0 for edit in reply.edits)


# --- rules and experts in one tree

EDIT = an_edit("Odd blocks", ("#define BLOCK 256\n", "#define BLOCK 96\n"), prior=0.1)
LINEAGE = attempts(("Something", Outcome.OK))


FEW_RULES = RuleProposer(rules=tuple(rule for rule in ALL if rule.category is Category.TUNING)[:1])


def mixed(model: ScriptedModel | None = None, rules: RuleProposer = FEW_RULES) -> MixedProposer:
    return MixedProposer(LLMProposer(model or ScriptedModel(lambda _: a_reply(EDIT))), rules)


def sources(reply: Proposals) -> set[str]:
    return {edit.proposer.split("/")[0] for edit in reply.edits}


def a_node(**changed: object) -> ProposalRequest:
    """A request about a node below the root."""
    evaluation = diagnosed((Bottleneck.TAIL, 1.0))
    return a_request(**{"lineage": LINEAGE, "evaluation": evaluation} | changed)


def test_at_the_root_both_propose_and_the_best_of_each_is_as_promising() -> None:
    reply = mixed().propose(a_request())
    assert sources(reply) == {"rules", "llm"}
    best = [
        max(edit.prior for edit in reply.edits if edit.proposer.startswith(name)) for name in ("rules", "llm")
    ]
    assert best == [1.0, 1.0]
    assert all(edit.exchange == (None if edit.proposer == "rules" else 0) for edit in reply.edits)
    assert reply.more


def test_elsewhere_the_better_proposer_is_asked() -> None:
    experts = {f"llm/{name}" for name in ("memory", "parallelism", "instructions", "numerics", "tensor")}
    good, bad = (0.5,) * 30, (0.0,) * 30
    for standings, wanted in (
        ({"rules": good} | dict.fromkeys(experts, bad), "rules"),
        ({"rules": bad} | dict.fromkeys(experts, good), "llm"),
    ):
        replies = [sources(mixed().propose(a_node(seed=seed, standings=standings))) for seed in range(20)]
        assert Counter(source for reply in replies for source in reply)[wanted] >= 19


def test_when_nobody_answers_the_rules_go_on_alone() -> None:
    """But for a few requests that find out whether the server has come back."""
    model = ScriptedModel(failing)
    requests = [a_node(seed=seed, unanswered=SILENCE) for seed in range(200)]
    replies = [mixed(model).propose(request) for request in requests]
    assert sum(sources(reply) == {"rules"} for reply in replies) > 180
    assert 0 < len(model.calls) < 25
    silent = mixed(ScriptedModel(failing)).propose(a_node(evaluation=FAILED, unanswered=SILENCE, seed=1))
    assert silent == Proposals(())


def test_a_server_that_fails_at_the_root_leaves_the_edits_of_the_rules() -> None:
    reply = mixed(ScriptedModel(failing)).propose(a_request())
    assert sources(reply) == {"rules"}
    assert len(reply.exchanges) == 1
    assert not reply.is_silent
    alone = LLMProposer(ScriptedModel(failing)).propose(a_request())
    assert alone.is_silent
    assert [(each.loss, each.reason) for each in alone.dropped] == [(Loss.NO_REPLY, "The server is away.")]
