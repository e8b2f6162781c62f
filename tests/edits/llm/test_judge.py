"""A judge weighs edits and changes nothing else, whatever it says."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mctskernel.core.edit import Category, Edit, WholeSource
from mctskernel.core.proposer import Exchange, ProposalRequest, Proposals, Purpose
from mctskernel.edits.llm.judge import (
    LEAST_WEIGHT,
    MOST_JUDGED,
    JudgedProposer,
    read_bottleneck,
    read_verdicts,
)
from mctskernel.edits.llm.model import Call
from tests.edits.llm.scripted import ScriptedModel, a_request, failing


class Says:
    """Proposes the same edits to everyone."""

    name = "rules"

    def __init__(self, *edits: Edit) -> None:
        self.edits = edits

    def propose(self, request: ProposalRequest) -> Proposals:
        earlier = Exchange(Purpose.PROPOSE, "scripted", "[]", "x", dollars=0.25)
        return Proposals(self.edits, more=True, exchanges=(earlier,))


def edits(count: int) -> tuple[Edit, ...]:
    return tuple(
        Edit(Category.UNROLLING, f"unroll {number}", WholeSource(f"// {number}\nint x{number};"), prior=2.0)
        for number in range(count)
    )


def verdicts(*promises: float) -> str:
    listed = [{"edit": place, "reason": "", "promise": promise} for place, promise in enumerate(promises)]
    return json.dumps({"bottleneck": "DRAM binds it.", "verdicts": listed})


def judged(count: int, answer: str | Exchange, **options: str) -> tuple[Proposals, ScriptedModel]:
    model = ScriptedModel(lambda _: answer)
    return JudgedProposer(Says(*edits(count)), model, **options).propose(a_request()), model


def test_priors_follow_promises_and_the_hopeless_waits() -> None:
    reply, _ = judged(3, verdicts(0.5, 0.0, 1.0))
    assert [edit.promise for edit in reply.edits] == [0.5, 0.0, 1.0]
    assert [edit.prior for edit in reply.edits] == [1.0, 2.0 * LEAST_WEIGHT, 2.0]
    assert all(edit.prior > 0 for edit in reply.edits), "it waits, it isn't dropped"


def test_edits_are_what_they_were_but_for_prior_and_promise() -> None:
    reply, _ = judged(3, verdicts(0.1, 0.2, 0.3))
    assert tuple(replace(edit, prior=2.0, promise=None) for edit in reply.edits) == edits(3)
    assert reply.more


def test_an_edit_that_is_not_judged_counts_as_the_mean() -> None:
    reply, _ = judged(3, verdicts(0.2, 0.6))
    assert reply.edits[2].promise is None
    assert reply.edits[2].prior == pytest.approx(2.0 * 0.4)


def test_the_exchange_is_kept_and_its_cost_counts() -> None:
    reply, model = judged(2, verdicts(0.5, 0.5), judge="strict-model")
    assert [exchange.purpose for exchange in reply.exchanges] == [Purpose.PROPOSE, Purpose.JUDGE]
    assert reply.cost == 0.25
    assert reply.remarks == ("The judge: DRAM binds it.",)
    (call,) = model.calls
    assert call.model == "strict-model"
    assert call.subject == a_request().kernel.identity


def test_where_there_is_nothing_to_choose_nobody_is_asked() -> None:
    reply, model = judged(1, verdicts(0.5))
    assert not model.calls
    assert reply.edits == edits(1)


def test_a_judge_that_does_not_answer_changes_nothing() -> None:
    call = Call(Purpose.JUDGE, ())
    for answer in (failing(call), "", "I can't say.", "[1, 2]", '{"verdicts": {}}'):
        reply, _ = judged(3, answer)
        assert reply.edits == edits(3)
        assert not reply.is_silent
        assert len(reply.exchanges) == 2


def test_only_so_many_are_judged() -> None:
    reply, model = judged(MOST_JUDGED + 5, verdicts(*[0.5] * 30))
    assert sum(edit.promise is not None for edit in reply.edits) == MOST_JUDGED
    assert f"### Edit {MOST_JUDGED - 1}:" in model.calls[0].messages[-1].content
    assert f"### Edit {MOST_JUDGED}:" not in model.calls[0].messages[-1].content


def test_the_judge_sees_the_evidence_and_what_each_edit_changes() -> None:
    _, model = judged(2, verdicts(0.5, 0.5))
    prompt = model.calls[0].messages[-1].content
    assert prompt.startswith("[prompt: judge 1]")
    assert "unroll 1" in prompt
    assert "+int x1;" in prompt


def test_verdicts_that_make_no_sense_are_passed_over() -> None:
    listed = [
        {"edit": 0, "promise": 2},
        {"edit": 1, "promise": True},
        {"edit": 9, "promise": 0.5},
        {"edit": "2", "promise": 0.5},
        {"edit": 2, "promise": 0.25},
        {"edit": 2, "promise": 0.75},
        "edit 3: good",
    ]
    (only,) = read_verdicts(json.dumps({"verdicts": listed}), 4)
    assert (only.edit, only.promise) == (2, 0.25)


def test_a_reply_that_was_cut_off_says_what_it_says() -> None:
    whole = "Sure! " + verdicts(0.1, 0.2, 0.3)
    assert len(read_verdicts(whole, 3)) == 3
    assert len(read_verdicts(whole[:-12], 3)) >= 2
    assert read_bottleneck(whole[:30]).startswith("DRAM")


@given(st.text() | st.binary().map(lambda data: verdicts(0.1)[:9] + data.decode("latin-1")))
def test_no_text_raises(text: str) -> None:
    assert all(0 <= each.edit < 5 and 0 <= each.promise <= 1 for each in read_verdicts(text, 5))
    read_bottleneck(text)
