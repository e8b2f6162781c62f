"""Tasks of PyTorch functions: dimensions, shapes, references; without a GPU, so without torch.compile's kernel."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from mctskernel.core.kernel import Language
from mctskernel.core.task import Task, TaskError
from mctskernel.core.task_file import load_task

pytest.importorskip("torch", reason="the extra `gpu` is not installed")

from mctskernel.problems.from_torch import create_task_from_torch

pytestmark = pytest.mark.slow

FUNCTIONS = "mctskernel.problems.operators"
PLAN = '"""\n[[launch]]\nkernel = "k"\ngrid = ["1"]\nargs = []\n"""\n'


def made(folder: Path, function: str, shapes: Sequence[str], dtypes: Sequence[str] = ("float32",)) -> Task:
    create_task_from_torch(folder, function, shapes, dtypes, Language.TRITON)
    (folder / "kernel.py").write_text(PLAN)
    return load_task(folder, Language.TRITON)


def test_plain_cuda_is_the_start_without_a_gpu(tmp_path: Path) -> None:
    created = create_task_from_torch(tmp_path / "t", f"{FUNCTIONS}:softmax", ["64x96"], ["fp16"])
    assert "kernel.py" not in created.files
    assert created.notes == ()
    task = load_task(tmp_path / "t")
    for shape in task.shapes:
        assert len(task.resolved(task.starting_kernel, shape).launches) == 3


def test_dimensions_of_equal_size_are_the_same_and_those_of_one_tensor_differ(tmp_path: Path) -> None:
    task = made(tmp_path / "t", f"{FUNCTIONS}:bias_gelu", ["4096x4096", "4096"], ["bf16"])
    assert [tensor.shape for tensor in task.inputs] == [("rows", "cols"), ("cols",)]
    assert task.outputs[0].shape == ("rows", "cols")
    assert task.outputs[0].dtype == "bfloat16"
    assert task.independent == "rows"


def test_small_shapes_of_several_dimensions_stay_small(tmp_path: Path) -> None:
    task = made(tmp_path / "t", f"{FUNCTIONS}:full_attention", ["64x2048x128"] * 3, ["bf16"])
    shapes = (*task.verify_shapes, *task.held_out_shapes)
    assert {"rows": 64, "groups": 64, "cols": 64} in shapes
    assert all(tensor.nbytes(shape) <= 2 << 20 for tensor in task.inputs for shape in shapes)


def test_the_reference_keeps_the_precision_of_its_inputs_whatever_the_function_casts(tmp_path: Path) -> None:
    task = made(tmp_path / "t", f"{FUNCTIONS}:cross_entropy", ["64x96", "64"], ["bf16", "int64"])
    shape = task.search_shapes[0]
    inputs = task.draw_inputs(shape, 0)
    for precision in (np.float64, np.float32):
        logits = inputs["logits"].astype(precision)
        found = task.expected({**inputs, "logits": logits}, shape)["out"]
        below = logits - logits.max(axis=1, keepdims=True)
        chosen = np.take_along_axis(below, inputs["targets"][:, np.newaxis], axis=1)[:, 0]
        assert found.dtype == precision
        assert np.allclose(
            found, np.log(np.exp(below).sum(axis=1)) - chosen, rtol=1e-12 if precision is np.float64 else 1e-5
        )


def test_a_module_that_stands_alone_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lonely.py").write_text(
        "def double(x):\n    return 2 * x\n\ndef total(x):\n    return x.sum()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    task = made(tmp_path / "t", "lonely:double", ["8x9"])
    total = made(tmp_path / "total", "lonely:total", ["8x9"])
    (tmp_path / "lonely.py").unlink()
    shape = task.search_shapes[0]
    inputs = task.draw_inputs(shape, 0)
    assert np.array_equal(task.expected(inputs, shape)["out"], 2 * inputs["x"])
    assert np.allclose(total.expected(inputs, shape)["out"], [inputs["x"].sum()]), (
        "one element without extents"
    )


@pytest.mark.parametrize(
    ("function", "shapes", "dtypes", "said"),
    [
        ("nowhere_at_all:f", ["8"], ["float32"], "nowhere_at_all can't be imported"),
        (f"{FUNCTIONS}:nothing", ["8"], ["float32"], r"no function in \S+ called 'nothing'"),
        (f"{FUNCTIONS}:softmax", ["8xx"], ["float32"], "is no shape"),
        (
            f"{FUNCTIONS}:bias_gelu",
            ["8x4", "3"],
            ["float32"],
            "fails with tensors of these shapes and dtypes",
        ),
        (f"{FUNCTIONS}:softmax", ["8x4"], ["float12"], "There is no dtype 'float12'. Did you mean 'float32'"),
        (f"{FUNCTIONS}:softmax", ["8x4"], ["fp32", "fp32"], "2 dtypes for 1 tensors"),
    ],
)
def test_mistakes_are_sentences(
    tmp_path: Path, function: str, shapes: list[str], dtypes: list[str], said: str
) -> None:
    with pytest.raises(TaskError, match=said):
        create_task_from_torch(tmp_path / "t", function, shapes, dtypes)
    assert not (tmp_path / "t").exists()
