"""A small task, and the rules applied to kernels of it."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from mctskernel.core.evaluation import Diagnosis, Evaluation, Outcome, Resources, Source
from mctskernel.core.kernel import Kernel
from mctskernel.core.launch_plan import plan_of
from mctskernel.core.proposer import ProposalRequest
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.edits.patch import apply
from mctskernel.edits.proposer import RuleProposer
from mctskernel.edits.rule import Context
from mctskernel.edits.rules import ALL
from mctskernel.edits.syntax import parse
from mctskernel.profiling.build import Compiled, compile_source
from mctskernel.tasks.builtin import find_task

MakeRequest = Callable[..., ProposalRequest]
Propose = Callable[..., dict[str, str]]


@pytest.fixture
def make_request() -> MakeRequest:
    """A request about a source, with the diagnosis and the compiler's report that a test wants."""

    def make(
        source: str,
        *,
        diagnosis: Diagnosis | None = None,
        outcome: Outcome = Outcome.OK,
        resources: tuple[Resources, ...] = (),
    ) -> ProposalRequest:
        kernel = Kernel(source)
        evaluation = Evaluation(outcome, Source.MODELLED, diagnosis=diagnosis, resources=resources)
        task = replace(load_task(find_task("softmax")), starting_kernel=kernel)
        return ProposalRequest(task, kernel, evaluation)

    return make


@pytest.fixture
def propose(make_request: MakeRequest) -> Propose:
    """New sources by title that one rule proposes for a source; each was built by NVRTC."""

    def run(rule_name: str, source: str, *, resources: tuple[Resources, ...] = ()) -> dict[str, str]:
        rules = tuple(rule for rule in ALL if rule.name == rule_name)
        assert rules, f"no rule is called {rule_name}"
        request = make_request(source, resources=resources)
        reply = RuleProposer(rules).propose(request)
        proposed = {edit.title: apply(request.kernel, edit).source for edit in reply.edits}
        assert len(proposed) == len(reply.edits), "two edits share a title"
        for text in proposed.values():
            build(text)
        return proposed

    return run


@pytest.fixture(scope="session")
def results() -> Callable[..., list[str]]:
    """The new texts that a rule makes of a text of a task, in the rule's own order."""
    rules = {rule.name: rule for rule in ALL}

    def run(task: Task, source: str, rule: str, resources: tuple[Resources, ...] = ()) -> list[str]:
        kernel = Kernel(source)
        evaluation = Evaluation(Outcome.OK, Source.MODELLED, resources=resources)
        context = Context(task, kernel, plan_of(kernel), evaluation, parse(source))
        return [proposal.source for proposal in rules[rule].propose(context)]

    return run


def build(source: str) -> None:
    """Fails with the log when the source doesn't compile."""
    made = compile_source(source, "kernel.cu", ("-arch=sm_90", "--std=c++17"))
    assert isinstance(made, Compiled), made
