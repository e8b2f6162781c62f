"""KernelBench's problems as tasks: what is read, what is refused, and with which sentence."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from mctskernel.core.kernel import Language
from mctskernel.core.task import Task, TaskError
from mctskernel.core.task_file import load_task
from mctskernel.problems.folders import is_problem, write_problem
from mctskernel.problems.kernelbench.benchmark import TOLERANCE
from mctskernel.problems.kernelbench.reference import (
    SOURCE_FILE,
    importable,
    read_module_problem,
    run_problem,
)
from mctskernel.problems.kernelbench.task import drafted
from mctskernel.problems.problem import PROBLEM_FILE, Problem
from mctskernel.problems.registry import benchmark_of, find_benchmark, read_problem
from mctskernel.problems.torch_task import task_toml
from tests.problems.kernelbench.problem_files import (
    CONVOLUTION,
    HEAD,
    HINGE,
    INDEXED,
    LINEAR,
    MASKED,
    NORMALISED,
    problem,
    written,
)


def task_of(folder: Path, text: str) -> Task:
    """The task without a kernel that could run, which takes longer to make."""
    draft = drafted(written(folder, text), {}, benchmark="KernelBench", tolerance=TOLERANCE)
    files = {
        "task.toml": task_toml(draft.task).encode(),
        "reference.py": draft.task.reference.encode(),
        "kernel.cu": b"// none",
        SOURCE_FILE: text.encode(),
        PROBLEM_FILE: msgspec.json.encode(draft.problem),
    }
    write_problem(Problem("KernelBench", draft.task.name, files), folder / "task")
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


def test_signs_are_drawn_by_get_inputs_itself_at_every_shape(tmp_path: Path) -> None:
    task = task_of(tmp_path, HINGE)
    assert len(task.verify_shapes) > 2
    for shape in task.verify_shapes:
        drawn = task.draw_inputs(shape, 1)
        assert set(np.unique(drawn["y"])) <= {-1.0, 1.0}
        assert drawn["x"].shape == task.inputs[0].extents(shape)
        assert not np.array_equal(drawn["x"], task.draw_inputs(shape, 2)["x"])
    assert task.outputs[0].shape == (1,)


def test_buffers_have_their_values_and_numbers_stay(tmp_path: Path) -> None:
    task = task_of(tmp_path, MASKED)
    drawn = task.draw_inputs(task.search_shapes[0], 0)
    x = drawn["x"]
    assert np.array_equal(drawn["mask"], np.tril(np.ones((24, 24))))
    assert np.array_equal(x, np.triu(x))
    assert np.count_nonzero(x) > 200
    np.testing.assert_allclose(
        task.expected(drawn, task.search_shapes[0])["out"], np.triu(x @ x) * 3.5 + drawn["mask"], rtol=1e-5
    )


def test_batch_norm_uses_the_statistics_of_the_batch(tmp_path: Path) -> None:
    task = task_of(tmp_path, NORMALISED)
    assert read_module_problem(task.folder).modes_differ
    assert [each.name for each in task.inputs] == ["x", "scale", "bn_weight", "bn_bias"]
    assert task.independent == task.inputs[0].shape[1]
    shape = next(each for each in task.verify_shapes if min(each.values()) > 1)
    drawn = task.draw_inputs(shape, 0)
    x = drawn["x"].astype(np.float64)
    normalised = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)
    expected = (normalised * drawn["bn_weight"] + drawn["bn_bias"]) * drawn["scale"]
    found = task.expected({name: array.astype(np.float64) for name, array in drawn.items()}, shape)["out"]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_no_parameter_can_be_left_out(tmp_path: Path) -> None:
    task = task_of(tmp_path, NORMALISED)
    for name, trivial in (("scale", 1.0), ("bn_weight", 1.0), ("bn_bias", 0.0)):
        tensor = next(each for each in task.inputs if each.name == name)
        low, high = tensor.limits(task.search_shapes[0])
        assert low < trivial < high


def test_extents_follow_a_stride(tmp_path: Path) -> None:
    task = task_of(tmp_path, CONVOLUTION)
    for shape in task.shapes:
        inputs = task.draw_inputs(shape, 0)
        assert task.expected(inputs, shape)["out"].shape == task.outputs[0].extents(shape)
    assert task.inputs[1].shape[2:] == (3, 3)


def test_the_harness_tolerance_is_never_exceeded(tmp_path: Path) -> None:
    loose = problem("return torch.exp(x * 40).cumsum(1)", "torch.rand(16, 4096)")
    assert task_of(tmp_path, loose).tolerance.relative <= 1e-4


def test_what_an_operator_adds_up_widens_the_tolerance(tmp_path: Path) -> None:
    """A plain kernel adds up one number after the other, PyTorch in pairs."""
    normalised = problem("return self.n(x)", "torch.rand(64, 1024)", init="self.n = nn.LayerNorm(1024)")
    tolerance = task_of(tmp_path, normalised).tolerance
    assert tolerance.relative == pytest.approx(1024 * 2.0**-24, rel=0.1)
    assert tolerance.ratio == 410
    (tmp_path / "other").mkdir()
    kept = task_of(tmp_path / "other", problem("return torch.relu(x)", "torch.rand(64, 1024)")).tolerance
    assert (kept.relative, kept.ratio) == (1e-5, 64.0)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (problem("return torch.relu(x)", "torch.rand(1 << 20, 1 << 20)"), "needs at least .* GB"),
        (
            problem("return self.l(x)", "torch.rand(2, 9)", init="self.l = nn.Linear(9, 1 << 40)"),
            "needs at least .* GB",
        ),
        (
            problem("return self.drop(x)", "torch.rand(8, 32)", init="self.drop = nn.Dropout(0.2)"),
            r"'drop' drops values at random \(p = 0.2\)",
        ),
        (problem("return x + torch.rand_like(x)", "torch.rand(8, 32)"), "draws random numbers"),
        (
            problem(
                "self.seen += 1; return x * self.seen",
                "torch.rand(8, 32)",
                init='self.register_buffer("seen", torch.zeros(()))',
            ),
            "from call to call: its forward changes its 'seen'",
        ),
        (problem("return x.add_(1).relu()", "torch.rand(4, 4)"), "changes its input 'x' in place"),
        (problem("return x, x", "torch.rand(4, 4)"), "gives a tuple"),
        (problem("return {'a': x}", "torch.rand(4, 4)"), "gives a dict"),
        (problem("return None", "torch.rand(4, 4)"), "gives nothing"),
        (problem("return x", "[torch.rand(4, 4)]"), "gives list for 'x'"),
        (problem("return x @ x", "torch.rand(4, 5)"), "its forward raised RuntimeError"),
        (problem("return x", "1.0"), "gives no tensor"),
        (problem("return x", "torch.rand(4)", head="import no_such_module_there\n"), "No module named"),
        (problem("return x", "torch.rand(4)", head="raise SystemExit(3)\n"), "SystemExit"),
        (problem("return x", "torch.rand(4)", init="raise OSError('no')"), "Model can't be made"),
        (f"{HEAD}def get_inputs():\n    return []\n", r"it has no class Model\(nn.Module\)"),
        (f"{HEAD}class Model(nn.Module):\n    pass\n", r"it has no get_inputs\(\)"),
        ("def get_inputs(:\n    return []\n", "is no Python"),
    ],
)
def test_what_is_not_supported_is_said_in_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = written(tmp_path, text)
    assert is_problem(path)
    with pytest.raises(TaskError) as caught:
        read_problem(path, Language.CUDA)
    assert re.search(sentence, str(caught.value))


def test_reading_leaves_no_module_behind(tmp_path: Path) -> None:
    task_of(tmp_path, HINGE)
    before = set(sys.modules)
    run_problem(written(tmp_path, HINGE))
    assert set(sys.modules) == before


def test_a_problem_is_a_module_while_it_is_asked_to_be(tmp_path: Path) -> None:
    names = run_problem(written(tmp_path, LINEAR))
    with importable(names):
        assert importlib.import_module(names["Model"].__module__).Model is names["Model"]
    assert names["Model"].__module__ not in sys.modules


def test_only_problems_are_recognised(tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text("def f(x):\n    return x\n", "utf-8")
    assert find_benchmark(other) is None
    assert not is_problem("softmax")
    assert not is_problem(tmp_path / "nothing.py")
    found = find_benchmark(written(tmp_path, HINGE))
    assert found is not None
    assert found.name == "KernelBench"


def test_a_problem_becomes_a_folder_with_a_kernel(tmp_path: Path) -> None:
    made = read_problem(written(tmp_path, LINEAR), Language.CUDA)
    assert "__global__" in made.files["kernel.cu"].decode()
    assert made.remarks == ()
    write_problem(made, tmp_path / "task")
    assert load_task(tmp_path / "task", Language.CUDA).inputs[1].name == "linear_weight"
    with pytest.raises(TaskError, match="overwrites nothing"):
        write_problem(made, tmp_path / "task")


def test_a_task_knows_its_benchmark(tmp_path: Path) -> None:
    task = task_of(tmp_path, HINGE)
    found = benchmark_of(task)
    assert found is not None
    assert found.name == "KernelBench"
