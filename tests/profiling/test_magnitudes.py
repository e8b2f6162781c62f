"""Outputs that are a single row: one huge element excuses no error of the others, and cancellation is no crime."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Array, Task, Tensor, Tolerance
from mctskernel.profiling.input_values import Values
from mctskernel.profiling.sampling import draw_sample
from mctskernel.profiling.verify import check_outputs, draw_verification, expect

SHAPE = {"n": 1500}
SEEDS = range(6)
Function = Callable[[Array], Array]


def task_of(reference: Function, **parts: object) -> Task:
    task = Task(
        name="vector",
        folder=Path("vector"),
        inputs=(Tensor("x", "float32", ("n",)),),
        outputs=(Tensor("out", "float32", ("n",)),),
        verify_shapes=({"n": 64}, SHAPE),
        tolerance=Tolerance(relative=1e-5, absolute=1e-12),
        starting_kernel=Kernel(""),
        reference=reference,
        thorough=True,
    )
    return replace(task, **parts)  # type: ignore[arg-type]


def square(x: Array) -> Array:
    return x * x


def one_huge(task: Task, size: float = 1e6) -> dict[str, Array]:
    inputs = task.draw_inputs(SHAPE, 0)
    inputs["x"][700] = size
    return inputs


def zeros_for_the_small(x: Array) -> Array:
    return np.where(x * x < 1e-6 * np.abs(x * x).max(), 0, x * x).astype(np.float32)


def noise_for_the_small(x: Array) -> Array:
    out = x * x
    return np.where(out < 1e-6 * out.max(), out * np.float32(1.01), out)


@pytest.mark.parametrize("cheat", [zeros_for_the_small, noise_for_the_small])
def test_a_huge_element_excuses_nothing(cheat: Function) -> None:
    task = task_of(square)
    inputs = one_huge(task)
    case = expect(task, SHAPE, 0, inputs)
    assert check_outputs(case, {"out": square(inputs["x"])}).passed
    check = check_outputs(case, {"out": cheat(inputs["x"])})
    assert not check.passed
    assert "1499 of 1500 elements" in check.message


def differences(x: Array) -> Array:
    return np.convolve(x, np.array([1, -2, 1], x.dtype), "same")


def differences_in_another_order(x: Array) -> Array:
    wide = np.pad(x, 1)
    return (wide[:-2] - x) + (wide[2:] - x)


def running(x: Array) -> Array:
    return np.cumsum(x)


def running_by_blocks(x: Array) -> Array:
    blocks = np.cumsum(np.pad(x, (0, -len(x) % 32)).reshape(-1, 32), axis=1)
    before = np.concatenate([np.zeros(1, x.dtype), np.cumsum(blocks[:-1, -1])])
    return (blocks + before[:, np.newaxis]).reshape(-1)[: len(x)]


@pytest.mark.parametrize(
    ("reference", "kernel"), [(differences, differences_in_another_order), (running, running_by_blocks)]
)
def test_honest_kernels_pass_whose_terms_cancel(reference: Function, kernel: Function) -> None:
    task = task_of(reference, tolerance=Tolerance(ratio=64.0))
    for seed in SEEDS:
        for case in draw_verification(task, seed):
            if case.values is Values.OFFSET:
                continue  # a mean of many equal digits is another matter, of matrices too
            with np.errstate(all="ignore"):
                check = check_outputs(case, {"out": kernel(case.inputs["x"])})
            assert check.passed, check.message


def test_parts_of_a_row_are_measured_as_the_whole_is() -> None:
    shape = {"n": 1 << 20}
    task = task_of(differences)
    inputs, sample = draw_sample(task, shape, 3, np.random.default_rng(0))
    out = sample.bands["out"][0].of(differences_in_another_order(inputs["x"]))
    assert len(out) < shape["n"]
    check = check_outputs(sample.case, {"out": out})
    assert check.passed, check.message
    assert not check_outputs(sample.case, {"out": out * np.float32(1.001)}).passed
