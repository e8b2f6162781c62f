"""Modelled instruction counts of real edits: what PTX multiplies, machine code multiplies."""

from __future__ import annotations

from functools import cache

import pytest

from mctskernel.core.evaluation import Evaluation
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import ProposalRequest
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.edits.patch import apply
from mctskernel.edits.proposer import RuleProposer
from mctskernel.profiling.model_device import ModelDevice
from mctskernel.tasks import find_task

PRODUCTS = 2048**3 / 32
"""Warp multiply-adds of the search shape."""


@cache
def _matmul() -> tuple[Task, ModelDevice]:
    """The task, and a device that knows the kernels on the way to the next."""
    task = load_task(find_task("matmul"))
    return task, ModelDevice(task)


def edited(task: Task, kernel: Kernel, evaluation: Evaluation, title: str) -> Kernel:
    request = ProposalRequest(task, kernel, evaluation)
    return apply(kernel, next(e for e in RuleProposer().propose(request).edits if e.title.startswith(title)))


@pytest.mark.parametrize(
    "titles",
    [(), ("compute 8 x 8",), ("compute 8 x 8", "move a and b and c")],
    ids=["naive", "blocked", "float4"],
)
def test_guarded_tile_fills_do_not_hide_the_loop_that_multiplies(titles: tuple[str, ...]) -> None:
    task, device = _matmul()
    kernel = task.starting_kernel
    evaluation = device.evaluate(kernel)
    for title in titles:
        kernel = edited(task, kernel, evaluation, title)
        evaluation = device.evaluate(kernel)
    assert evaluation.ok, evaluation.message
    # The pipe does integer multiply-adds for addresses too: as many again in the naive kernel.
    assert 0.999 <= evaluation.counters["smsp__inst_executed_pipe_fma.sum"] / PRODUCTS <= 2.2
