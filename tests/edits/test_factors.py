"""What the rules' edits decide, as far as it is a number."""

from __future__ import annotations

from mctskernel.core.edit import Factor
from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.core.kernel import Language
from mctskernel.core.proposer import ProposalRequest
from mctskernel.core.task_file import load_task
from mctskernel.edits.patch import apply
from mctskernel.edits.proposer import RuleProposer
from mctskernel.tasks.builtin import find_task


def test_numbers_that_an_edit_sets_are_what_the_kernel_then_says() -> None:
    for language in (Language.CUDA, Language.TRITON):
        task = load_task(find_task("softmax"), language)
        kernel = task.starting_kernel
        request = ProposalRequest(task, kernel, Evaluation(Outcome.OK, Source.MODELLED))
        tuned = [edit for edit in RuleProposer().propose(request).edits if edit.factors]
        named = {factor.name for edit in tuned for factor in edit.factors}
        assert named & set(kernel.macros)
        for edit in tuned:
            after = apply(kernel, edit).macros
            assert all(
                after[name] == level for name, level in _numbers(edit.factors) if name in kernel.macros
            )


def _numbers(factors: tuple[Factor, ...]) -> list[tuple[str, float | str]]:
    return [(factor.name, factor.level) for factor in factors]
