"""The rules that restructure a kernel: each result keeps computing the right thing, look-alikes are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

import mctskernel.tasks
from mctskernel.core.evaluation import Evaluation, Outcome
from mctskernel.core.evaluation import Source as Origin
from mctskernel.core.kernel import Kernel
from mctskernel.core.launch_plan import plan_of
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.edits.rule import Context
from mctskernel.edits.rules import ALL
from mctskernel.edits.syntax import parse
from mctskernel.profiling.model_device import ModelDevice

TASKS = Path(mctskernel.tasks.__file__).parent
RULES = {rule.name: rule for rule in ALL}

CHAINS = [
    ("matmul", ("swap-thread-axes", "matmul-shared-tiling", "matmul-register-blocking", "float4-tiles")),
    ("matmul", ("matmul-register-blocking",)),
    ("softmax", ("parallel-rows", "warp-shuffle-reduction", "float4-access")),
    ("layernorm", ("parallel-rows", "float4-access", "warp-shuffle-reduction")),
    ("sum", ("warp-shuffle-reduction", "float4-access")),
]

LOOK_ALIKES = [
    ("matmul", "b[k * N + col]", "b[k * N + row]", "matmul-shared-tiling"),
    ("matmul", "sum += a", "sum -= a", "matmul-register-blocking"),
    ("matmul", "row < M && col < N", "row < M || col < N", "matmul-shared-tiling"),
    ("softmax", "sum += expf(", "sum = sum * 0.5f + expf(", "parallel-rows"),
    ("softmax", "out[row * cols + col] =", "out[row * cols + col / 2] =", "parallel-rows"),
    ("softmax", "float sum = 0.0f", "float sum = 1.0f", "parallel-rows"),
    ("sum", "tile[0];", "tile[1];", "warp-shuffle-reduction"),
    ("stencil", "x == 0", "x == 0", "swap-thread-axes"),
]


def context_of(task: Task, source: str) -> Context:
    kernel = Kernel(source)
    return Context(task, kernel, plan_of(kernel), Evaluation(Outcome.OK, Origin.MODELLED), parse(source))


def results(task: Task, source: str, rule: str) -> list[str]:
    edits = RULES[rule].propose(context_of(task, source))
    return [edit.change.source for edit in edits if hasattr(edit.change, "source")]


@pytest.mark.parametrize(("name", "rules"), CHAINS, ids=lambda value: "-".join(value) if value else "")
def test_a_chain_of_edits_stays_correct(name: str, rules: tuple[str, ...]) -> None:
    task = load_task(TASKS / name)
    source = task.starting_kernel.source
    for rule in rules:
        source = results(task, source, rule)[0]
    evaluation = ModelDevice(task).evaluate(Kernel(source))
    assert evaluation.ok, evaluation.message


@pytest.mark.parametrize(("name", "old", "new", "rule"), LOOK_ALIKES)
def test_a_look_alike_is_left_alone(name: str, old: str, new: str, rule: str) -> None:
    task = load_task(TASKS / name)
    source = task.starting_kernel.source
    assert old in source
    assert results(task, source.replace(old, new), rule) == []


def test_wide_tiles_are_not_widened_again() -> None:
    task = load_task(TASKS / "matmul")
    blocked = results(task, task.starting_kernel.source, "matmul-register-blocking")[0]
    wide = results(task, blocked, "float4-tiles")[0]
    assert results(task, wide, "float4-tiles") == []
