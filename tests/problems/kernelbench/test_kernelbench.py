"""KernelBench problems become tasks, and unsupported ones are refused."""

import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import plan_of
from mctskernel.core.task import Task, TaskError
from mctskernel.core.task_file import load_task
from mctskernel.problems.kernelbench.reference import SOURCE_FILE
from mctskernel.problems.kernelbench.task import drafted
from mctskernel.problems.problem import PROBLEM_FILE, Problem
from mctskernel.problems.registry import benchmark_of, is_problem, read_problem, write_problem
from mctskernel.problems.torch_task import task_toml
from mctskernel.profiling.build import Build, build
from tests.problems.kernelbench.problem_files import HEAD, INDEXED, LINEAR, problem, written

pytestmark = pytest.mark.slow


NETWORK = "import urllib.error; raise urllib.error.URLError('unreachable')"
"""What code does that downloads something where there is no network."""


def task_of(folder: Path, text: str) -> Task:
    """The task without a kernel that could run, which takes longer to make."""
    draft = drafted(written(folder, text), {})
    files = {
        "task.toml": task_toml(draft).encode(),
        "reference.py": draft.reference.encode(),
        "kernel.cu": b"// none",
        SOURCE_FILE: text.encode(),
        PROBLEM_FILE: msgspec.json.encode(draft.problem),
    }
    write_problem(Problem("KernelBench", draft.name, files), folder / "task")
    return load_task(folder / "task", Language.CUDA)


def test_forward_is_the_reference_over_inputs_and_used_parameters(tmp_path: Path) -> None:
    task = task_of(tmp_path, LINEAR)
    assert task.name == "3_Some_problem"
    assert [each.name for each in task.inputs] == ["x", "linear_weight", "linear_bias"]
    rows, columns = task.inputs[0].shape
    assert task.inputs[1].shape[1] == columns
    assert task.outputs[0].shape == (rows, task.inputs[1].shape[0])
    assert sorted(task.search_shapes[0].values()) == [64, 96, 128]
    assert task.independent == rows
    shape = task.verify_shapes[1]
    inputs = {name: array.astype(np.float64) for name, array in task.draw_inputs(shape, 0).items()}
    x, weight, bias = (torch.from_numpy(array) for array in inputs.values())
    expected = torch.nn.functional.gelu(torch.nn.functional.linear(x, weight, bias))
    found = task.expected(inputs, shape)["out"]
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-12)


@pytest.mark.parametrize("groups", [1, 2])
def test_the_channels_of_a_transposed_convolution_vary_with_those_of_its_weight(
    tmp_path: Path, groups: int
) -> None:
    layer = f"self.up = nn.ConvTranspose2d(6, 4, (3, 5), stride=2, bias=False, groups={groups})"
    x, weight = task_of(tmp_path, problem("return self.up(x)", "torch.rand(2, 6, 9, 11)", init=layer)).inputs
    assert x.shape[1] == weight.shape[0]
    assert all(isinstance(extent, str) for extent in x.shape)


def test_images_and_channels_of_a_convolution_vary_above_its_window(tmp_path: Path) -> None:
    layers = "self.conv, self.drop = nn.Conv2d(8, 16, 3, dilation=2), nn.Dropout(0.2)"
    forward = "return self.drop(self.conv(x).clamp(0.0, 0.0))"  # which the dropout doesn't change
    task = task_of(tmp_path, problem(forward, "torch.rand(4, 8, 14, 12)", init=layers))
    x, *_ = task.inputs
    assert all(isinstance(extent, str) for extent in x.shape)
    assert all(min(x.extents(shape)[2:]) >= 5 for shape in (*task.verify_shapes, *task.held_out_shapes))


def test_the_bias_of_a_convolution_has_the_channels_of_its_weight(tmp_path: Path) -> None:
    """As many images as channels make it a guess which of them a size of another tensor stands for."""
    text = problem(
        "return self.conv(x) + self.shift",
        "torch.rand(16, 8, 12, 12)",
        init="self.conv, self.shift = nn.Conv2d(8, 16, 3), nn.Parameter(torch.rand(16, 1, 1))",
    )
    found = read_problem(written(tmp_path, text))
    assert found.has_kernel, found.notes


def test_a_buffer_that_only_selects_is_an_input(tmp_path: Path) -> None:
    buffer = 'self.register_buffer("mask", torch.tril(torch.ones(24, 24)))'
    forward = "return (x @ x).masked_fill(self.mask == 0, -1.0)"
    task = task_of(tmp_path, problem(forward, "torch.rand(24, 24)", init=buffer))
    assert [each.name for each in task.inputs] == ["x", "mask"]


def test_tensors_that_are_no_buffers_and_tuples_of_numbers_are_read(tmp_path: Path) -> None:
    forward = "return nn.functional.interpolate(x + self.shift, y)"
    text = problem(forward, "torch.rand(2, 3, 8, 8), (5, 6)", init="self.shift = torch.rand(8)")
    assert [each.name for each in task_of(tmp_path, text).inputs] == ["x", "shift"]


def test_inputs_are_drawn_as_get_inputs_draws_them(tmp_path: Path) -> None:
    task = task_of(tmp_path, INDEXED)
    assert task.make_inputs is None
    x, y = task.inputs
    assert (x.distribution, x.low, x.high) == ("uniform", -1.0, 2.0)
    assert (y.distribution, y.dtype) == ("integers", "int64")
    for shape in (*task.verify_shapes, *task.held_out_shapes):
        drawn = task.draw_inputs(shape, 1)
        assert drawn["y"].max() < drawn["x"].shape[1]
        task.expected(drawn, shape)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (problem("return self.l(x)", init="self.l = nn.Linear(32, 1 << 40)"), "needs at least .* GB"),
        (
            problem("return self.drop(x)", init="self.drop = nn.Dropout(0.2)"),
            r"'drop' drops values at random \(p = 0.2\)",
        ),
        (problem("return x + torch.rand_like(x)"), "draws random numbers"),
        (
            problem(
                "self.seen += 1; return x * self.seen", init='self.register_buffer("seen", torch.zeros(()))'
            ),
            "from call to call: its forward changes its 'seen'",
        ),
        (problem("return x.add_(1).relu()"), "changes its input 'x' in place"),
        (problem("return x", head="import no_such_module_there\n"), "No module named"),
        (problem("return {}[x.shape[0]]"), "KeyError"),
        (problem("for _ in range(9999): x = x + 1\n        return x"), "more than 4096 operators"),
        (
            problem("return self.l(x)[0]", "torch.rand(2, 9, 8)", init="self.l = nn.LSTM(8, 4, proj_size=2)"),
            "a recurrent layer of packed sequences or with projections",
        ),
        (problem("return {'out': x}"), "returns a dict; KernelBench compares"),
        (problem("return x, x"), "returns a tuple; KernelBench compares"),
        (problem("return x", "torch.rand(1 << 20, 1 << 20)"), "needs at least 4398.0 GB|more than fits"),
        (problem("return x", "'a word'"), "get_inputs returns no tensor"),
        (
            problem("return x", head=f"{NETWORK}\n"),
            r"URLError: .*\. It needs the network; a problem's file must hold all that it needs",
        ),
        (problem("return x", init=NETWORK), r"Model can't be made: URLError: .*\. It needs the network"),
        (
            f"{HEAD}class Model:\n    pass\ndef get_inputs():\n    return [torch.rand(3)]\n",
            "is no torch.nn.Module",
        ),
        (f"{HEAD}def get_inputs():\n    return []\n", r"it has no class Model\(nn.Module\)"),
        ("def get_inputs(:\n    return []\n", "is not valid Python"),
    ],
)
def test_unsupported_problems_are_refused(tmp_path: Path, text: str, sentence: str) -> None:
    path = written(tmp_path, text)
    assert is_problem(path)
    with pytest.raises(TaskError) as caught:
        read_problem(path, Language.CUDA)
    assert re.search(sentence, str(caught.value))


def test_functions_that_a_module_made_for_itself_see_its_parameters(tmp_path: Path) -> None:
    init = "m = self.inner = nn.Linear(32, 16); self.f = lambda x: m(x).relu()"
    task = task_of(tmp_path, problem("return self.f(x)", init=init))
    assert [each.name for each in task.inputs] == ["x", "inner_weight", "inner_bias"]
    shape = task.verify_shapes[0]
    inputs = {name: array.astype(np.float64) for name, array in task.draw_inputs(shape, 0).items()}
    x, weight, bias = inputs.values()
    np.testing.assert_allclose(task.expected(inputs, shape)["out"], np.maximum(x @ weight.T + bias, 0))


def test_no_result_is_empty_at_a_shape_that_is_verified(tmp_path: Path) -> None:
    task = task_of(tmp_path, problem("return x[:-1]"))
    assert task.outputs[0].shape == ("rows - 1", "cols")
    assert min(shape["rows"] for shape in (*task.verify_shapes, *task.held_out_shapes)) > 1


def test_a_problem_becomes_a_folder_with_a_kernel(tmp_path: Path) -> None:
    made = read_problem(written(tmp_path, LINEAR), Language.CUDA)
    assert "__global__" in made.files["kernel.cu"].decode()
    assert made.notes == ()
    write_problem(made, tmp_path / "task")
    task = load_task(tmp_path / "task", Language.CUDA)
    assert task.inputs[1].name == "linear_weight"
    assert (found := benchmark_of(task)) is not None
    assert found.name == "KernelBench"
    with pytest.raises(TaskError, match="overwrites nothing"):
        write_problem(made, tmp_path / "task")


@pytest.mark.slow
def test_rows_of_groups_whose_size_follows_from_another_one_compile(tmp_path: Path) -> None:
    text = problem(
        "return self.norm(torch.sigmoid(x))",
        "torch.rand(64, 4096)",
        init="self.norm = nn.GroupNorm(64, 4096)",
    )
    source = read_problem(written(tmp_path, text), Language.CUDA).files["start_templates.cu"].decode()
    kernels = tuple(launch.kernel for launch in plan_of(Kernel(source)).launches)
    assert isinstance(build(Kernel(source), kernels), Build)
