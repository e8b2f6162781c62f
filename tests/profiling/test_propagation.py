"""What comes of a NaN or an infinity follows from the reference; what numpy and CUDA do differently is left open."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from mctskernel.core.task import Array, Numerics, Propagation, Task
from mctskernel.core.task_file import load_task
from mctskernel.profiling.input_values import Values
from mctskernel.profiling.propagation import settle
from mctskernel.profiling.verify import check_outputs, draw_case, draw_cases
from tests.conftest import TASK_TOML, WriteTask

ROWS = (
    TASK_TOML.replace('["n"]', '["rows", "n"]').replace("{ n", "{ rows = 8, n").replace("n = 1 }", "n = 9 }")
)
SHAPE = {"rows": 8, "n": 130}

Function = Callable[[Array], Array]


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def fmax_relu(x: Array) -> Array:
    return np.fmax(x, 0)


def where_relu(x: Array) -> Array:
    return np.where(x > 0, x, 0)


def softmax(x: Array) -> Array:
    exponentials = np.exp(x - x.max(axis=1, keepdims=True))
    shares: Array = exponentials / exponentials.sum(axis=1, keepdims=True)
    return shares


def online_softmax(x: Array) -> Array:
    """NaN from inf - inf, where a row has -inf in it before anything else."""
    return np.where(np.isinf(x).any(axis=1, keepdims=True), np.nan, softmax(x))


def swallowing_softmax(x: Array) -> Array:
    return softmax(np.where(np.isnan(x), -np.inf, x))


def running_sum(x: Array) -> Array:
    return np.cumsum(x, axis=1)


def swallowing_sum(x: Array) -> Array:
    return np.cumsum(np.nan_to_num(x), axis=1)


def masked_sum(x: Array) -> Array:
    """The elements behind are multiplied by 0, and not left out."""
    sums: Array = np.matmul(x, np.triu(np.ones((x.shape[1], x.shape[1]), x.dtype)))
    return sums


def clamped(x: Array) -> Array:
    return np.clip(x, -1e30, 1e30)


def twice(x: Array) -> Array:
    doubled: Array = 2 * x
    return doubled


def twice_spreading(x: Array) -> Array:
    spread: Array = 2 * x + 0 * np.roll(x, 1)
    return spread


def verdict(task: Task, kernel: Function, values: Values) -> bool:
    """Whether a kernel that does what the function does passes on every seed."""
    for seed in range(4):
        case = draw_case(task, SHAPE, seed, values)
        with np.errstate(all="ignore"):
            out = kernel(case.inputs["x"]).astype(np.float32)
        if not check_outputs(case, {"out": out}).passed:
            return False
    return True


@pytest.fixture
def task(write_task: WriteTask) -> Task:
    return replace(load_task(write_task(ROWS)), independent="rows")


@pytest.mark.parametrize(
    ("reference", "kernel", "values", "passes"),
    [  # by default, and where it must propagate
        (relu, relu, Values.NAN, (True, True)),
        (relu, fmax_relu, Values.NAN, (True, False)),
        (relu, where_relu, Values.NAN, (True, False)),
        (softmax, swallowing_softmax, Values.NAN, (False, False)),
        (softmax, softmax, Values.INFINITY, (True, True)),
        (softmax, online_softmax, Values.INFINITY, (True, False)),
        (running_sum, swallowing_sum, Values.NAN, (False, False)),
        (masked_sum, running_sum, Values.NAN, (True, True)),
        (running_sum, masked_sum, Values.NAN, (False, False)),
        (twice, clamped, Values.INFINITY, (False, False)),
        (twice, twice_spreading, Values.NAN, (False, False)),
    ],
)
def test_a_contract_decides(
    task: Task, reference: Function, kernel: Function, values: Values, passes: tuple[bool, bool]
) -> None:
    asked = replace(task, reference=reference)
    strict = replace(asked, numerics=Numerics(nan=Propagation.PROPAGATE, infinity=Propagation.PROPAGATE))
    assert (verdict(asked, kernel, values), verdict(strict, kernel, values)) == passes


def test_a_softmax_depends_on_what_is_all_of_a_row(task: Task) -> None:
    special = np.where(np.arange(8)[:, None] == 3, np.full((8, 130), np.nan), 0.0)
    found = settle(replace(task, reference=softmax), SHAPE, {"x": special + 0.5}, "x", special)
    assert found.depends["out"].all(axis=1).tolist() == [row == 3 for row in range(8)]


def test_what_is_unspecified_is_in_no_case(task: Task) -> None:
    silent = replace(task, numerics=Numerics(nan=Propagation.UNSPECIFIED, infinity=Propagation.UNSPECIFIED))
    for asked, given in ((task, True), (silent, False)):
        cases = draw_cases(asked, asked.verify_shapes, 0)
        assert all(np.isfinite(case.inputs["x"]).all() for case in cases) is not given


def test_a_range_of_inputs_has_no_special_values_unless_they_are_asked_for(task: Task) -> None:
    tensor = replace(task.inputs[0], distribution="uniform")
    positive = replace(task, inputs=(tensor,))
    asking = replace(positive, numerics=Numerics(stated=frozenset({"nan"})))
    for asked, kinds in ((positive, set()), (asking, {Values.NAN})):
        found = {case.values for case in draw_cases(asked, asked.verify_shapes, 0)}
        assert found & {Values.NAN, Values.INFINITY} == kinds
