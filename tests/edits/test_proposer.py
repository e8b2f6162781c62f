"""The rule proposer ranks by evidence, repeats itself exactly and proposes nothing that can't be launched."""

from collections.abc import Callable, Iterable

import pytest

from mctskernel.core.edit import Category
from mctskernel.core.evaluation import Bottleneck, Cause, Diagnosis, Evaluation, Outcome, Source
from mctskernel.core.kernel import Language
from mctskernel.core.proposer import ProposalRequest
from mctskernel.core.task_file import load_task
from mctskernel.edits.patch import apply
from mctskernel.edits.proposer import RuleProposer
from mctskernel.edits.rule import Context, Proposal, Rule
from mctskernel.tasks.builtin import find_task
from tests.edits.kernels import COPY as SOURCE

MakeRequest = Callable[..., ProposalRequest]


def rule(name: str, text: str, *addresses: Bottleneck, prior: float = 1.0) -> Rule:
    def propose(_: Context) -> Iterable[Proposal]:
        yield Proposal(name, text, rationale="Because.", expected_effect="Less.")

    return Rule(name, Category.TUNING, frozenset(addresses), propose, prior)


def test_a_rule_that_addresses_the_diagnosis_comes_first(make_request: MakeRequest) -> None:
    cause = Cause(Bottleneck.TAIL, 0.8, "The last wave is a fifth full.")
    rules = (
        rule("a", SOURCE.replace("256", "128"), Bottleneck.SPILLS),
        rule("b", SOURCE.replace("256", "512"), Bottleneck.TAIL),
    )
    reply = RuleProposer(rules).propose(make_request(SOURCE, diagnosis=Diagnosis((cause,))))
    assert [edit.title for edit in reply.edits] == ["b", "a"]
    assert reply.edits[0].prior > 5 * reply.edits[1].prior
    assert reply.edits[0].rationale == "Because. Evidence: The last wave is a fifth full."
    assert reply.edits[1].rationale == "Because."
    assert reply.edits[0].proposer == "rules"


@pytest.mark.parametrize(
    "text",
    [
        SOURCE,
        SOURCE + "// only a comment\n",
        SOURCE.replace("256", "2048"),
        SOURCE.replace("BLOCK)", "MISSING)"),
        SOURCE.replace("#define BLOCK 256", "#define BLOCK 512").replace(
            "void f", "void __launch_bounds__(256) f"
        ),
        SOURCE.replace("int i", "__shared__ double tile[BLOCK][25]; int i"),
    ],
)
def test_what_changes_nothing_or_cannot_launch_is_dropped(make_request: MakeRequest, text: str) -> None:
    assert RuleProposer((rule("a", text),)).propose(make_request(SOURCE)).edits == ()


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.OK])
def test_failed_kernels_get_no_proposals(make_request: MakeRequest, outcome: Outcome) -> None:
    assert RuleProposer().propose(make_request(SOURCE, outcome=outcome)).edits == ()


@pytest.mark.parametrize(
    "source",
    [
        "__global__ void f() {}",
        "/* kernel = [ */ __global__ void f() {}",
        SOURCE.replace("if (i", "if i"),
        "",
    ],
)
def test_unreadable_kernels_get_no_structural_proposals(make_request: MakeRequest, source: str) -> None:
    reply = RuleProposer().propose(make_request(source))
    assert {edit.category for edit in reply.edits} <= {Category.TUNING}


def test_every_edit_says_why_and_is_another_kernel(make_request: MakeRequest) -> None:
    request = make_request(SOURCE)
    edits = RuleProposer().propose(request).edits
    assert all(edit.title and edit.rationale and edit.expected_effect and edit.prior > 0 for edit in edits)
    assert len({apply(request.kernel, edit).identity for edit in edits}) == len(edits)


@pytest.mark.parametrize("language", [Language.CUDA, Language.TRITON])
def test_numbers_that_an_edit_sets_are_what_the_kernel_then_says(language: Language) -> None:
    task = load_task(find_task("softmax"), language)
    kernel = task.starting_kernel
    request = ProposalRequest(task, kernel, Evaluation(Outcome.OK, Source.MODELLED))
    tuned = [edit for edit in RuleProposer().propose(request).edits if edit.factors]
    assert {factor.name for edit in tuned for factor in edit.factors} & set(kernel.macros)
    for edit in tuned:
        after = apply(kernel, edit).macros
        assert all(after[each.name] == each.level for each in edit.factors if each.name in kernel.macros)


def test_turns_of_an_unrolled_loop_are_levels_of_one_factor(make_request: MakeRequest) -> None:
    request = make_request(load_task(find_task("softmax")).starting_kernel.source)
    unrolled = [edit for edit in RuleProposer().propose(request).edits if edit.category is Category.UNROLLING]
    by_name: dict[str, list[object]] = {}
    for edit in unrolled:
        for factor in edit.factors:
            by_name.setdefault(factor.name, []).append(factor.level)
    assert len(unrolled) > 4
    assert all(len({*levels}) == len(levels) >= 5 for levels in by_name.values())
