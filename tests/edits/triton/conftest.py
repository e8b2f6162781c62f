"""A small task, and the Triton rules applied to kernels of it; each result passes the guard, builds and verifies."""

import dataclasses
from collections.abc import Callable

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.proposer import ProposalRequest
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.edits import triton
from mctskernel.edits.patch import apply
from mctskernel.edits.proposer import RuleProposer
from mctskernel.profiling.model_device import ModelDevice
from mctskernel.profiling.triton.source import read_module
from mctskernel.tasks.builtin import find_task

Propose = Callable[..., dict[str, str]]
Verify = Callable[[str], None]

HEADER = '''"""
[[launch]]
kernel = "f"
grid = [{grid}]
args = [{args}]
constexprs = {{ {constexprs} }}
num_warps = {warps}
"""

import triton
import triton.language as tl

'''


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What builds and emulates modules is slow."""
    for item in items:
        if isinstance(item, pytest.Function) and {"verify", "device"} & set(item.fixturenames):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def softmax_task() -> Task:
    """Softmax of rows, at small shapes."""
    return dataclasses.replace(
        load_task(find_task("softmax"), Language.TRITON),
        search_shapes=({"rows": 8192, "cols": 512},),
        verify_shapes=tuple({"rows": r, "cols": c} for r, c in ((1, 1), (5, 70), (3, 64), (7, 130))),
        held_out_shapes=(),
        held_out_timed_shapes=(),
    )


def with_plan(
    code: str,
    *,
    grid: str = '"rows"',
    args: str = '"x", "out", "cols"',
    constexprs: str = 'BLOCK = "BLOCK"',
    warps: int = 1,
) -> str:
    """A module of code and its plan."""
    return HEADER.format(grid=grid, args=args, constexprs=constexprs, warps=warps) + code


@pytest.fixture
def propose(softmax_task: Task) -> Propose:
    """New sources by title that one rule proposes for a source; each passes the guard."""

    def run(rule_name: str, source: str, *, task: Task = softmax_task) -> dict[str, str]:
        rules = tuple(rule for rule in triton.ALL if rule.name == rule_name)
        assert rules, f"no rule is called {rule_name}"
        kernel = Kernel(source, Language.TRITON)
        request = ProposalRequest(task, kernel, Evaluation(Outcome.OK, Source.MODELLED))
        reply = RuleProposer(triton_rules=rules).propose(request)
        proposed = {edit.title: apply(kernel, edit).source for edit in reply.edits}
        assert len(proposed) == len(reply.edits), "two edits share a title"
        for text in proposed.values():
            read_module(text)
        return proposed

    return run


@pytest.fixture
def verify(softmax_task: Task) -> Verify:
    """Build a source and verify it at every shape of the small task."""
    device = ModelDevice(softmax_task)

    def run(source: str) -> None:
        evaluation = device.evaluate(Kernel(source, Language.TRITON))
        assert evaluation.ok, f"{evaluation.outcome}: {evaluation.message}\n{source}"

    return run
