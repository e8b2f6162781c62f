"""What comes of a NaN follows from a reference in PyTorch as it does from one in numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mctskernel.core.interpreted_reference import InterpretedReference
from mctskernel.core.task import Array, Task
from mctskernel.core.task_file import load_task
from mctskernel.profiling.input_values import Values
from mctskernel.profiling.verify import draw_case, judge
from mctskernel.torch_reference import call_in_numpy
from tests.conftest import WriteTask
from tests.profiling.test_propagation import ROWS, SHAPE

torch = pytest.importorskip("torch")

Function = Callable[[Array], Array]

FUNCTIONS = """
import torch
import torch.nn.functional as F

def relu(x): return F.relu(x.float()).half()
def relu6(x): return F.relu6(x)
def above(x): return torch.where(x > 0, x, 0.0)
def largest(x): return x - x.max(dim=1, keepdim=True).values
def softmax(x): return F.softmax(x, dim=1)
def descending(x): return x.sort(dim=1).values
def gelu(x): return F.gelu(x) + F.silu(F.layer_norm(x, (x.shape[1],)))
"""


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def fmax_relu(x: Array) -> Array:
    return np.fmax(x, 0)


def swallowing(function: Function) -> Function:
    """Takes a NaN for a number that is none of those that any convention would make of it."""
    return lambda x: function(np.where(np.isnan(x), np.float32(0.25), x))


def fmax_relu6(x: Array) -> Array:
    return np.fmin(np.fmax(x, 0), 6)


def not_above(x: Array) -> Array:
    return np.where(x <= 0, 0, x)


def below_fmax(x: Array) -> Array:
    return x - np.fmax.reduce(x, axis=1, keepdims=True)


def softmax(x: Array) -> Array:
    powers = np.exp(x - np.fmax.reduce(x, axis=1, keepdims=True))
    shares: Array = powers / powers.sum(axis=1, keepdims=True)
    return shares


@pytest.fixture
def in_torch(write_task: WriteTask, tmp_path: Path) -> Callable[[str], Task]:
    path = tmp_path / "functions.py"
    path.write_text(FUNCTIONS)

    def made(name: str) -> Task:
        task = load_task(write_task(ROWS))
        return replace(task, reference=lambda x: call_in_numpy(str(path), name, x))

    return made


def passes(task: Task, kernel: Function) -> bool:
    verdicts = []
    for seed in range(2):
        case = draw_case(task, SHAPE, seed, Values.NAN)
        with np.errstate(all="ignore"):
            verdicts.append(judge(case, {"out": kernel(case.inputs["x"]).astype(np.float32)}).passed)
    return all(verdicts)


@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        ("relu", (relu, fmax_relu)),
        ("relu6", (fmax_relu6, lambda x: np.clip(x, 0, 6))),
        ("above", (not_above, fmax_relu)),
        ("largest", (below_fmax, lambda x: x - x.max(axis=1, keepdims=True))),
        ("softmax", (softmax,)),
    ],
)
def test_each_convention_is_right_and_nothing_else(
    in_torch: Callable[[str], Task], name: str, kernels: tuple[Function, ...]
) -> None:
    task = in_torch(name)
    for kernel in kernels:
        assert passes(task, kernel)
        assert not passes(task, swallowing(kernel))


def test_what_follows_from_an_order_is_left_open(in_torch: Callable[[str], Task]) -> None:
    assert passes(in_torch("descending"), swallowing(lambda x: np.sort(x, axis=1)))


def test_the_contract_is_the_same_in_numpy_in_pytorch_and_interpreted(
    in_torch: Callable[[str], Task], write_task: WriteTask
) -> None:
    interpreted = InterpretedReference(
        "import numpy as np\n\ndef reference(x):\n    return np.maximum(x, 0)\n"
    )
    numpy_task = load_task(write_task(ROWS))
    cases: list[Any] = [
        draw_case(each, SHAPE, 1, Values.NAN)
        for each in (
            replace(numpy_task, reference=lambda x: np.maximum(x, 0)),
            replace(numpy_task, reference=interpreted),
            in_torch("relu"),
            replace(numpy_task, reference=lambda x: torch.from_numpy(np.array(x)).relu().numpy()),
        )
    ]
    allowed = [
        {np.nan_to_num(each, nan=1e9).tobytes() for each in (case.expected["out"], *case.alternatives["out"])}
        for case in cases
    ]
    assert all(each == allowed[0] for each in allowed)
    assert not any(case.unsettled for case in cases)
