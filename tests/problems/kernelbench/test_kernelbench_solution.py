"""Solutions as KernelBench's harness takes them: its steps on the CPU, with a stub in place of the host code."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from mctskernel.core.kernel import Language
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.core.tensor_array import TensorArray
from mctskernel.problems.kernelbench.benchmark import FUNCTION
from mctskernel.problems.kernelbench.reference import SOURCE_FILE, call_reference
from mctskernel.problems.registry import read_problem, solution_of, write_problem
from tests.problems.kernelbench.problem_files import HINGE, LINEAR, MASKED, NORMALISED, written

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["linear", "hinge", "masked", "normalised"])
def task(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Task:
    text = {"linear": LINEAR, "hinge": HINGE, "masked": MASKED, "normalised": NORMALISED}[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    write_problem(read_problem(written(folder, text), Language.CUDA), folder / "task")
    return load_task(folder / "task", Language.CUDA)


def loaded(text: str, original: str, run: Callable[..., torch.Tensor]) -> dict[str, Any]:
    """The names after the harness ran the problem, and then the solution over it; nothing can be launched here."""
    context: dict[str, Any] = {}
    exec(compile(original.replace(".cuda()", ""), "<string>", "exec"), context)  # noqa: S102 - as the harness does
    context["Original"], context["original_inputs"] = context["Model"], context["get_inputs"]
    exec(compile(text.replace(".cuda()", ""), "<string>", "exec"), context)  # noqa: S102
    context[FUNCTION] = run
    return context


def launched(task: Task) -> Callable[..., torch.Tensor]:
    """Does what a right kernel does, and refuses tensors that no kernel could take."""

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        assert [str(each.dtype).removeprefix("torch.") for each in inputs] == [
            each.dtype for each in task.inputs
        ]
        assert task.takes_tensors
        arrays = call_reference(task.folder, *(each.numpy() for each in inputs))
        tensors = call_reference(task.folder, *map(TensorArray, inputs))
        np.testing.assert_array_equal(np.asarray(arrays), np.asarray(tensors))
        return torch.from_numpy(np.asarray(arrays))

    return run


def test_the_harness_accepts_it(task: Task) -> None:
    (text,) = solution_of(task, task.starting_kernel).values()
    context = loaded(text, (task.folder / SOURCE_FILE).read_text("utf-8"), launched(task))
    torch.manual_seed(42)
    arguments = context["get_init_inputs"]()
    with torch.no_grad():
        torch.manual_seed(42)
        original = context["Original"](*arguments)
        torch.manual_seed(42)
        custom = context["ModelNew"](*arguments)
        for seed in (7, 8, 9):
            torch.manual_seed(seed)
            inputs = context["original_inputs"]()
            expected, found = original(*inputs), custom(*inputs)
            assert expected.shape == found.shape
            assert expected.dtype == found.dtype
            assert torch.allclose(expected, found, atol=1e-4, rtol=1e-4)
        context[FUNCTION] = lambda *_: torch.zeros_like(expected)
        assert not custom(*inputs).any(), "a wrong kernel is not hidden"
