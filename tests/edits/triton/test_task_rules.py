"""The Triton rules on the built-in tasks: patterns that only some of them have, and chains of edits."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

import mctskernel.tasks.builtin
from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.proposer import ProposalRequest
from mctskernel.core.task import Task, Tolerance
from mctskernel.core.task_file import languages, load_task
from mctskernel.edits.patch import apply
from mctskernel.edits.proposer import RuleProposer
from mctskernel.profiling.model_device import ModelDevice
from tests.edits.kernels import verified_everywhere

Propose = Callable[..., dict[str, str]]

FOLDER = Path(mctskernel.tasks.builtin.__path__[0])


@pytest.fixture(scope="module")
def matmul() -> Task:
    """The built-in task, timed at a shape with few tiles and many products for each."""
    whole = verified_everywhere(load_task(FOLDER / "matmul", Language.TRITON))
    return dataclasses.replace(whole, search_shapes=({"M": 40, "N": 70, "K": 300},))


@pytest.fixture(scope="module")
def device(matmul: Task) -> ModelDevice:
    return ModelDevice(matmul)


def check(device: ModelDevice, text: str) -> None:
    evaluation = device.evaluate(Kernel(text, Language.TRITON))
    assert evaluation.ok, f"{evaluation.outcome}: {evaluation.message}\n{text}"


def test_the_tolerance_says_how_precisely_to_multiply(
    propose: Propose, matmul: Task, device: ModelDevice
) -> None:
    source = matmul.starting_kernel.source
    (precise,) = propose("triton-dot-precision", source, task=matmul).values()
    assert 'input_precision="tf32x3"' in precise
    check(device, precise)
    lax = dataclasses.replace(matmul, tolerance=Tolerance(relative=1e-2, absolute=1e-2, ratio=1e6))
    proposed = propose("triton-dot-precision", source, task=lax)
    assert list(proposed) == ["set input_precision=tf32 of tl.dot", "set input_precision=tf32x3 of tl.dot"]
    check(ModelDevice(lax), proposed["set input_precision=tf32 of tl.dot"])
    assert not device.evaluate(Kernel(proposed["set input_precision=tf32 of tl.dot"], Language.TRITON)).ok
    strict = dataclasses.replace(matmul, tolerance=Tolerance(relative=1e-7))
    assert propose("triton-dot-precision", source, task=strict) == {}


TASKS = {
    path.parent.name: load_task(path.parent, Language.TRITON)
    for path in sorted(FOLDER.glob("*/task.toml"))
    if Language.TRITON in languages(path.parent)
}


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
