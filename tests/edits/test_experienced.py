"""Priors follow what kinds of edits did, within bounds, and nothing changes where nothing is known."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from mctskernel.core.edit import Category, Edit, Experience, WholeSource
from mctskernel.core.evaluation import Bottleneck, Cause, Diagnosis, Evaluation, Outcome, Source
from mctskernel.core.proposer import ProposalRequest, Proposals
from mctskernel.core.task_file import load_task
from mctskernel.edits.proposer import QUOTED, ExperiencedProposer

GOOD = Experience("tuning", "block # -> #", "barriers", "cuda", "sm_90", 20, 0, 18, 0.5)
BAD = Experience("numerics", "approximate divisions", "barriers", "cuda", "sm_90", 20, 10, 0, 0.0)
EDITS = (
    Edit(Category.PRECISION, "approximate divisions", WholeSource("one"), prior=2.0),
    Edit(Category.TUNING, "BLOCK 32 -> 64", WholeSource("two"), prior=1.0),
    Edit(Category.FUSION, "merge the launches", WholeSource("three"), prior=0.8),
)


@dataclass
class Fixed:
    """Proposes the same edits, and keeps what it was asked."""

    requests: list[ProposalRequest] = field(default_factory=list)
    name: str = "fixed"

    def propose(self, request: ProposalRequest) -> Proposals:
        self.requests.append(request)
        return Proposals(EDITS, dollars=0.25, more=True, notes=("said",))


@pytest.fixture
def request_(small_task: Path) -> ProposalRequest:
    task = load_task(small_task)
    diagnosis = Diagnosis((Cause(Bottleneck.BARRIERS, 0.5, "Barriers."),))
    evaluation = Evaluation(Outcome.OK, Source.MODELLED, diagnosis=diagnosis)
    return ProposalRequest(task, task.starting_kernel, evaluation)


def test_what_helped_comes_first_and_nothing_else_of_the_reply_changes(request_: ProposalRequest) -> None:
    fixed = Fixed()
    reply = ExperiencedProposer(fixed, (GOOD, BAD)).propose(request_)
    assert [edit.title for edit in reply.edits] == [
        "BLOCK 32 -> 64",
        "merge the launches",
        "approximate divisions",
    ]
    by_title = {edit.title: edit.prior for edit in reply.edits}
    assert by_title["merge the launches"] == 0.8
    assert by_title["BLOCK 32 -> 64"] > 1.5
    assert by_title["approximate divisions"] < 0.7
    assert replace(reply, edits=()) == replace(fixed.propose(request_), edits=())
    assert fixed.requests[0].experiences == (GOOD, BAD)


def test_other_bottlenecks_are_not_quoted_but_count(request_: ProposalRequest) -> None:
    fixed, elsewhere = Fixed(), replace(GOOD, bottleneck="tail")
    many = tuple(replace(BAD, title=f"bad {chr(97 + number)}", tried=number) for number in range(20))
    reply = ExperiencedProposer(fixed, (elsewhere, *many)).propose(request_)
    assert len(fixed.requests[0].experiences) == QUOTED
    assert fixed.requests[0].experiences[0].tried == 19
    assert next(edit.prior for edit in reply.edits if edit.category is Category.TUNING) > 1
