"""Solutions as KernelBench's harness takes them: its steps on the CPU, with a stub in place of the launch."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.task import Task, TaskError
from mctskernel.core.task_file import load_task
from mctskernel.problems.folders import write_problem
from mctskernel.problems.kernelbench.python_text import global_names, renamed, without_docstrings
from mctskernel.problems.kernelbench.reference import SOURCE_FILE, call_problem
from mctskernel.problems.problem import PROBLEM_FILE
from mctskernel.problems.registry import read_problem, solution_of
from tests.conftest import KERNEL
from tests.problems.kernelbench.problem_files import HINGE, LINEAR, MASKED, NORMALISED, written

PROHIBITED = re.compile(r"\btry\s*:|\bexcept\b|\bpass\b")
"""What the harness's static check refuses."""


@pytest.fixture(scope="module", params=["linear", "hinge", "masked", "normalised"])
def task(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Task:
    text = {"linear": LINEAR, "hinge": HINGE, "masked": MASKED, "normalised": NORMALISED}[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    write_problem(read_problem(written(folder, text), Language.CUDA), folder / "task")
    return load_task(folder / "task", Language.CUDA)


def loaded(text: str, original: str, launch: Callable[..., None]) -> dict[str, Any]:
    """The names after the harness ran the problem, and then the solution over it; nothing can be launched here."""
    context: dict[str, Any] = {}
    exec(compile(original.replace(".cuda()", ""), "<string>", "exec"), context)  # noqa: S102 - as the harness does
    context["Original"], context["original_inputs"] = context["Model"], context["get_inputs"]
    exec(compile(text.replace(".cuda()", ""), "<string>", "exec"), context)  # noqa: S102
    context["launch"] = launch
    return context


def launched(task: Task) -> Callable[..., None]:
    """Does what a right kernel does, and refuses tensors that no kernel could take."""

    def launch(*arguments: Any) -> None:
        tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
        *inputs, out = tensors
        assert all(each.is_contiguous() for each in tensors)
        assert [str(each.dtype).removeprefix("torch.") for each in inputs] == [
            each.dtype for each in task.inputs
        ]
        out.copy_(torch.from_numpy(np.asarray(call_problem(task.folder, *(each.numpy() for each in inputs)))))

    return launch


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
            assert not torch.allclose(expected, found + 0.01, atol=1e-4, rtol=1e-4)


def test_a_wrong_kernel_is_not_hidden(task: Task) -> None:
    (text,) = solution_of(task, task.starting_kernel).values()

    def launch(*arguments: Any) -> None:
        [each for each in arguments if isinstance(each, torch.Tensor)][-1].zero_()

    context = loaded(text, (task.folder / SOURCE_FILE).read_text("utf-8"), launch)
    with torch.no_grad():
        found = context["ModelNew"](*context["get_init_inputs"]())(*context["original_inputs"]())
    assert not found.any()


def test_nothing_in_it_looks_like_a_way_around_the_kernel(task: Task) -> None:
    (text,) = solution_of(task, task.starting_kernel).values()
    without_comments = "\n".join(line.partition("#")[0].partition("//")[0] for line in text.split("\n"))
    assert not PROHIBITED.search(without_comments)
    assert "load_inline" in text
    assert "__global__" in text


def test_another_number_than_the_problem_has_is_refused(tmp_path: Path) -> None:
    write_problem(read_problem(written(tmp_path, MASKED), Language.CUDA), tmp_path / "task")
    task = load_task(tmp_path / "task", Language.CUDA)
    (text,) = solution_of(task, task.starting_kernel).values()
    model = loaded(text, MASKED, launched(task))["ModelNew"]()
    with pytest.raises(ValueError, match=r"3\.5"):
        model(torch.rand(24, 24), 4.5)


def test_in_evaluation_mode_a_module_is_its_original(tmp_path: Path) -> None:
    write_problem(read_problem(written(tmp_path, NORMALISED), Language.CUDA), tmp_path / "task")
    task = load_task(tmp_path / "task", Language.CUDA)
    (text,) = solution_of(task, task.starting_kernel).values()
    model = loaded(text, NORMALISED, launched(task))["ModelNew"]().eval()
    x = torch.randn(64, 24)
    with torch.no_grad():
        assert torch.allclose(model(x), x, atol=1e-3)  # statistics that no batch has changed


def test_names_that_a_kernel_takes_are_given_up() -> None:
    text = "import torch\nN = 4\n\ndef get_inputs():\n    return [torch.rand(N)]\n"
    assert global_names(text) == ("torch", "N", "get_inputs")
    context: dict[str, Any] = {}
    exec(renamed(text, {"N": "N_of_the_problem"}) + "\nN = 100\n", context)  # noqa: S102
    assert len(context["get_inputs"]()[0]) == 4


def test_docstrings_go_and_nothing_else_does() -> None:
    text = 'class A:\n    """Passes;\n    pass it."""\n\n    def f(self):\n        """Kept."""\n        return "pass"\n'
    found = without_docstrings(text, lambda words: "pass" in words)
    assert found == 'class A:\n    ...\n\n    def f(self):\n        """Kept."""\n        return "pass"\n'


def test_a_task_of_no_problem_has_no_solution(task: Task, tmp_path: Path) -> None:
    other = replace(task, folder=tmp_path)
    with pytest.raises(TaskError, match="mctskernel best RUN"):
        solution_of(other, task.starting_kernel)
    (tmp_path / PROBLEM_FILE).write_bytes(msgspec.json.encode({"benchmark": "NoSuchBench"}))
    with pytest.raises(TaskError, match="NoSuchBench"):
        solution_of(other, task.starting_kernel)


def test_a_kernel_that_does_not_fit_is_refused_in_a_sentence(task: Task) -> None:
    with pytest.raises(TaskError, match="can't be written as a solution"):
        solution_of(task, Kernel(KERNEL, Language.CUDA))
