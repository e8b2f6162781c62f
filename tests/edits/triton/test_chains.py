"""Chains of edits that the rules propose for the built-in tasks: the guard lets them pass, and their plans hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mctskernel.tasks.builtin
from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.core.kernel import Language
from mctskernel.core.launch_plan import plan_of, resolve
from mctskernel.core.proposer import ProposalRequest
from mctskernel.core.task_file import languages, load_task
from mctskernel.edits.patch import apply, as_patch
from mctskernel.edits.proposer import RuleProposer
from mctskernel.profiling.model_device import ModelDevice
from mctskernel.profiling.triton.source import read_module

FOLDER = Path(mctskernel.tasks.builtin.__path__[0])
TASKS = {
    path.parent.name: load_task(path.parent, Language.TRITON)
    for path in sorted(FOLDER.glob("*/task.toml"))
    if Language.TRITON in languages(path.parent)
}


@pytest.mark.slow
@given(st.sampled_from(sorted(TASKS)), st.lists(st.integers(0, 10_000), min_size=1, max_size=5))
def test_chains_keep_modules_clean_and_plans_resolvable(name: str, choices: list[int]) -> None:
    task = TASKS[name]
    kernel, evaluation = task.starting_kernel, Evaluation(Outcome.OK, Source.MODELLED)
    for choice in choices:
        request = ProposalRequest(task, kernel, evaluation)
        edits = RuleProposer().propose(request).edits
        if not edits:
            break
        edit = edits[choice % len(edits)]
        after = apply(kernel, edit)
        read_module(after.source)
        plan = plan_of(after)
        for shape in task.shapes:
            resolve(plan, task.names(shape, after), task.buffer_names)
        patch = as_patch(kernel.source, after.source)
        assert sum(len(block.replace) for block in patch.blocks) < 3 * len(kernel.source)
        kernel = after


@pytest.mark.slow
@pytest.mark.parametrize("name", ["layernorm", "transpose", "bias_gelu"])
def test_the_first_edits_of_a_task_build_and_verify(name: str) -> None:
    task = TASKS[name]
    device, evaluation = ModelDevice(task), Evaluation(Outcome.OK, Source.MODELLED)
    edits = RuleProposer().propose(ProposalRequest(task, task.starting_kernel, evaluation)).edits
    by_category = {edit.category: edit for edit in reversed(edits)}
    for edit in by_category.values():
        kernel = apply(task.starting_kernel, edit)
        assert (found := device.evaluate(kernel)).ok, f"{edit.title}: {found.message}\n{kernel.source}"
