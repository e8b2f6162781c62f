"""What rules make of kernels is right at every shape and faster, and bugs planted in it are found."""

import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import mctskernel.tasks.builtin
from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import ProposalRequest
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.edits.patch import apply
from mctskernel.edits.proposer import RuleProposer
from mctskernel.profiling.model_device import ModelDevice
from tests.edits.kernels import verified_everywhere

Results = Callable[..., list[str]]

FOLDER = Path(mctskernel.tasks.builtin.__path__[0])
TASKS = ("bias_gelu", "cross_entropy", "int4_matmul", "layernorm", "matmul", "spmv", "stencil", "transpose")


@cache
def task_of(name: str) -> Task:
    return load_task(FOLDER / name)


@cache
def device_of(name: str) -> ModelDevice:
    return ModelDevice(verified_everywhere(task_of(name)))


@cache
def started(name: str) -> Evaluation:
    return device_of(name).evaluate(task_of(name).starting_kernel)


def chained(results: Results, name: str, rules: tuple[str, ...]) -> str:
    text = task_of(name).starting_kernel.source
    for rule in rules:
        text = results(task_of(name), text, rule)[0]
    return text


# A task, the rules that are applied one after another, and how many times faster the model must find the result.
GAINS = [
    ("softmax", ("parallel-rows", "warp-shuffle-reduction", "float4-loops", "keep-row"), 15.0),
    ("rmsnorm", ("rows-on-chip",), 15.0),
    ("bias_gelu", ("float4-elements", "fast-math"), 1.8),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rules", "gain"), GAINS, ids=[f"{case[0]}-{case[1][-1]}" for case in GAINS])
def test_a_chain_is_right_at_every_shape_and_faster(
    results: Results, name: str, rules: tuple[str, ...], gain: float
) -> None:
    text = chained(results, name, rules)
    after = device_of(name).evaluate(Kernel(text))
    assert after.ok, f"{after.message}\n{text}"
    assert started(name).timings[0].seconds > gain * after.timings[0].seconds


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_a_chain_of_any_two_edits_is_right(name: str) -> None:
    task = task_of(name)
    kernel, path = task.starting_kernel, list[str]()
    evaluation = Evaluation(Outcome.OK, Source.MODELLED)
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    for _ in range(2):
        edits = RuleProposer().propose(ProposalRequest(task, kernel, evaluation)).edits
        categories = sorted({edit.category for edit in edits})
        category = categories[rng.integers(len(categories))]
        among = [edit for edit in edits if edit.category is category]
        edit = among[rng.integers(len(among))]
        kernel = apply(kernel, edit)
        path.append(edit.title)
    evaluation = device_of(name).evaluate(kernel)
    assert evaluation.ok, f"after {path}: {evaluation.outcome}: {evaluation.message}\n{kernel.source}"
