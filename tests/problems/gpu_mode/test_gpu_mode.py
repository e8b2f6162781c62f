"""GPU MODE problems become tasks, and unsupported ones are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from mctskernel.core.kernel import Language
from mctskernel.core.task import Task, TaskError
from mctskernel.core.task_file import load_task
from mctskernel.problems.problem import Problem
from mctskernel.problems.registry import read_problem, solution_of
from tests.problems.gpu_mode.folders import SCALE, YAML, write_task

pytestmark = pytest.mark.slow

Made = tuple[Problem, Task]


def made(folder: Path, **changed: str) -> Made:
    problem = read_problem(write_task(folder / "theirs", **changed), Language.CUDA)
    ours = folder / "ours"
    ours.mkdir()
    for name, text in problem.files.items():
        (ours / name).write_bytes(text)
    if "kernel.cu" not in problem.files:
        (ours / "kernel.cu").write_text("/* */")
    return problem, load_task(ours, Language.CUDA)


def yaml(tests: list[dict[str, Any]], benchmarks: list[dict[str, Any]], more: str = "") -> str:
    head = YAML[: YAML.index("tests:")]
    return f"{head}tests: {json.dumps(tests)}\nbenchmarks: {json.dumps(benchmarks)}\n{more}"


@pytest.fixture(scope="module")
def scale(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return made(tmp_path_factory.mktemp("scale"))


def test_tests_are_verified_and_benchmarks_timed(scale: Made) -> None:
    _, task = scale
    assert task.verify_shapes == ({"rows": 6, "cols": 32, "case": 0}, {"rows": 9, "cols": 40, "case": 1})
    assert task.search_shapes == ({"rows": 64, "cols": 128, "case": 2}, {"rows": 128, "cols": 256, "case": 3})
    assert [(tensor.name, tensor.shape) for tensor in task.inputs] == [
        ("x", ("rows", "cols")),
        ("factor", ("rows",)),
    ]
    assert [(tensor.name, tensor.shape) for tensor in task.outputs] == [("out", ("rows", "cols"))]


def test_the_tolerance_is_that_of_the_check(scale: Made) -> None:
    _, task = scale
    assert task.tolerance.element is not None
    assert (task.tolerance.element.relative, task.tolerance.element.absolute) == (1e-3, 1e-4)
    assert task.tolerance.absolute < 1e-5, "small results may not be zeros, whatever the check allows"
    assert task.tolerance.relative < 1e-3


def test_a_submission_gives_the_kernel_what_it_takes_of_the_data(scale: Made) -> None:
    _, task = scale
    text = solution_of(task, task.starting_kernel)["submission.py"]
    extension = Mock()
    names: dict[str, Any] = {}
    exec(compile(text, "submission.py", "exec"), names)  # noqa: S102 - what is tested
    names |= {"_extension": lambda: extension, "_stream": lambda _: 0}
    data = torch.ones(3, 4), torch.ones(3), torch.empty(3, 4)
    out = names["custom_kernel"](data)
    assert out.shape == (3, 4)
    assert any(each is out or each == out.data_ptr() for each in extension.launch_0.call_args.args)


CONFIGURED = """
import torch
from utils import verbose_allclose

def generate_input(n: int, k: int, kind: str, seed: int):
    torch.manual_seed(seed)
    x = torch.randn(n, device="cuda") if kind == "normal" else torch.rand(n, device="cuda")
    return {"x": x, "weights": {"a.b": torch.full((1,), 2.0).cuda()}, "config": {"k": k, "name": "fixed", "pad": None}}

def ref_kernel(data):
    x = data["x"] * data["weights"]["a.b"]
    return x[: data["config"]["k"]].contiguous(), x.sum()

def check_implementation(data, output):
    size = output[0].numel() ** 0.5
    expected = ref_kernel(data)
    reasons = verbose_allclose(output[0], expected[0], rtol=1e-4 * size)
    reasons += verbose_allclose(output[1], expected[1], rtol=1e-4 * size)
    return not reasons, " ".join(reasons)
"""


def test_values_and_tables_around_the_tensors_are_kept(tmp_path: Path) -> None:
    cases = [
        {"n": 16, "k": 4, "kind": "normal", "seed": 1},
        {"n": 36, "k": 9, "kind": "uniform", "seed": 1},
        {"n": 64, "k": 25, "kind": "normal", "seed": 1},
    ]
    _, task = made(tmp_path, reference=CONFIGURED, yaml=yaml(cases[:2], cases[2:]))
    assert [tensor.name for tensor in task.inputs] == ["x", "weights_a_b"]
    assert [(tensor.name, tensor.shape) for tensor in task.outputs] == [("out0", ("k",)), ("out1", (1,))]
    shape = task.verify_shapes[1]
    assert shape == {"n": 36, "k": 9, "case": 1}
    inputs = task.draw_inputs(shape, 3)
    assert inputs["x"].min() >= 0
    out = task.expected(inputs, shape)
    assert np.allclose(out["out0"], 2 * inputs["x"][:9])
    tolerances = [task.tolerance_of("out0", each).element for each in task.shapes]
    assert [each.relative for each in tolerances if each is not None] == pytest.approx([5e-4, 2e-4, 3e-4])
    text = made_submission(task)
    assert "out0, out1 = run(data['x'], data['weights']['a.b'])" in text
    assert "return out0, out1.reshape(())" in text


def made_submission(task: Task) -> str:
    """A submission of a kernel that fits the task's plan; nothing runs it."""
    source = (
        '/*\n[[launch]]\nkernel = "copy"\ngrid = [1]\nblock = [1]\n'
        'args = ["x", "weights_a_b", "out0", "out1", "k"]\n*/\n'
        'extern "C" __global__ void copy(float* x, float* w, float* a, float* b, int k) {}\n'
    )
    return solution_of(task, type(task.starting_kernel)(source))["submission.py"]


def with_a_fourth(what: str) -> str:
    """The task with one thing more in its data."""
    source = SCALE.replace("return x, factor, output", f"return x, factor, output, {what}")
    return source.replace("x, factor, output = data", "x, factor, output, _ = data")


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("import torch\ndef ref_kernel(data): return data", "no function called 'generate_input'"),
        (SCALE.replace("x * factor[:, None]", "torch.rand_like(x)"), "isn't deterministic"),
        (SCALE.replace("output[...] = x", "output[...] = x.add_(1)"), "changes its inputs"),
        (with_a_fourth("object()"), "gives a object (data[3])"),
        (
            SCALE.replace("x, factor, output\n\n", "x.to(torch.float8_e5m2), factor, output\n\n", 1),
            "float8_e5m2",
        ),
        (
            SCALE[: SCALE.index("check_implementation")]
            + "def check_implementation(data, output): return float(output.sum()) > -1e9, ''",
            "doesn't compare with the reference's output",
        ),
    ],
)
def test_a_task_that_is_not_supported_says_why(reference: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(TaskError) as raised:
        made(tmp_path, reference=reference)
    assert said in str(raised.value)
