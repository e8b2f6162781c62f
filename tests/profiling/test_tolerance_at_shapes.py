"""Verification with a tolerance for each shape, on whole cases and on the parts that are timed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Array, Bound, Task, Tensor, Tolerance, ToleranceAt
from mctskernel.profiling.comparison import compare
from mctskernel.profiling.input_values import Values
from mctskernel.profiling.verify import draw_case, draw_verification, judge

STRICT, LAX = {"rows": 4, "cols": 8}, {"rows": 6, "cols": 8}
OFF = 1e-3


def off_by(error: float, task: Task, shape: dict[str, int]) -> Array:
    return (2 * draw_case(task, shape, 0).inputs["x"] + error).astype(np.float32)


@pytest.fixture
def task() -> Task:
    return Task(
        name="double",
        summary="",
        folder=Path("double"),
        inputs=(Tensor("x", "float32", ("rows", "cols")),),
        outputs=(Tensor("out", "float32", ("rows", "cols")),),
        scalars={},
        search_shapes=(STRICT, LAX),
        verify_shapes=(STRICT, LAX),
        held_out_shapes=(),
        tolerance=Tolerance(ratio=float("inf"), absolute=1e-5),
        starting_kernel=Kernel(""),
        independent="rows",
        reference=lambda x: 2 * x,
        tolerances_at=(ToleranceAt(LAX, {"absolute": 1e-2}),),
    )


def test_each_shape_is_judged_by_its_own_tolerance(task: Task) -> None:
    verdicts = [
        judge(draw_case(task, each, 0), {"out": off_by(OFF, task, each)}).passed for each in (STRICT, LAX)
    ]
    assert verdicts == [False, True]


def test_a_bound_of_each_element_is_on_top() -> None:
    truth = np.array([[1000.0, 1.0], [1000.0, 1000.0]])
    row = Tolerance(relative=1e-2, absolute=0, ratio=float("inf"))
    own = replace(row, element=Bound(relative=1e-2, absolute=1e-3))
    off = truth + np.array([[0.0, 5.0], [0.0, 0.0]])
    assert compare(off, truth, truth, row).passed, "a row's largest result excuses it"
    assert not compare(off, truth, truth, own).passed
    assert compare(truth * 1.009, truth, truth, own).passed
    assert not compare(truth * 1.009, truth, truth, replace(own, element=Bound(1e-2, 1e-3, most=8))).passed


def test_a_bound_is_for_drawn_values(task: Task) -> None:
    bounded = replace(task, tolerance=replace(task.tolerance, element=Bound(1e-2, 1e-2)))
    for case in draw_verification(bounded, 0):
        widened = case.values not in {Values.DRAWN, Values.NAN, Values.INFINITY}
        assert not widened or case.tolerances["out"].element is None
