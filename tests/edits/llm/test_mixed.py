"""Rules and experts in one tree: both at the root, whoever did better elsewhere, rules alone when nobody answers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from mctskernel.core.edit import Category
from mctskernel.core.evaluation import Bottleneck, Outcome
from mctskernel.core.proposer import ProposalRequest, Proposals
from mctskernel.edits.llm.mixed import SILENCE, MixedProposer
from mctskernel.edits.llm.proposer import LLMProposer
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
)

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


def test_elsewhere_whoever_did_better_is_asked() -> None:
    experts = {f"llm/{name}" for name in ("memory", "parallelism", "instructions", "numerics", "tensor")}
    good, bad = (0.5,) * 30, (0.0,) * 30
    for standings, wanted in (
        ({"rules": good} | dict.fromkeys(experts, bad), "rules"),
        ({"rules": bad} | dict.fromkeys(experts, good), "llm"),
    ):
        replies = [sources(mixed().propose(a_node(seed=seed, standings=standings))) for seed in range(20)]
        assert Counter(source for reply in replies for source in reply)[wanted] >= 19


def test_rules_cost_no_call() -> None:
    model = ScriptedModel(lambda _: a_reply(EDIT))
    standings = {"rules": (1.0,) * 100}
    reply = mixed(model).propose(a_node(standings=standings))
    assert sources(reply) == {"rules"}
    assert not model.calls
    assert reply.more, "an expert may have others"


def test_where_the_rules_have_been_asked_an_expert_is() -> None:
    siblings = tuple(replace(attempt, proposer="rules") for attempt in LINEAGE)
    request = a_node(siblings=siblings, offered=3, standings={"rules": (1.0,) * 100})
    assert sources(mixed().propose(request)) == {"llm"}


def test_where_the_rules_have_nothing_to_say_an_expert_is_asked() -> None:
    reply = mixed(rules=RuleProposer(rules=())).propose(a_node(standings={"rules": (1.0,) * 100}))
    assert sources(reply) == {"llm"}


def test_repairs_come_from_the_model() -> None:
    (edit,) = mixed().propose(a_node(evaluation=FAILED)).edits
    assert edit.proposer == "llm/repair"


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
