"""Verification with a tolerance for each shape, on whole cases and on the parts that are timed."""

from dataclasses import replace

import numpy as np
import pytest

from mctskernel.core.task import Array, Bound, Task, Tolerance, ToleranceAt
from mctskernel.core.task_file import load_task
from mctskernel.profiling.comparison import compare
from mctskernel.profiling.input_values import Values
from mctskernel.profiling.verify import check_outputs, draw_case, draw_verification
from tests.conftest import WriteTask

STRICT, LAX = {"n": 32}, {"n": 48}
OFF = 1e-3


def off_by(error: float, task: Task, shape: dict[str, int]) -> Array:
    return (2 * draw_case(task, shape, 0).inputs["x"] + error).astype(np.float32)


@pytest.fixture
def task(write_task: WriteTask) -> Task:
    return replace(
        load_task(write_task()),
        verify_shapes=(STRICT, LAX),
        tolerance=Tolerance(ratio=float("inf"), absolute=1e-5),
        tolerances_at=(ToleranceAt(LAX, {"absolute": 1e-2}),),
    )


def test_each_shape_is_judged_by_its_own_tolerance(task: Task) -> None:
    verdicts = [
        check_outputs(draw_case(task, each, 0), {"out": off_by(OFF, task, each)}).passed
        for each in (STRICT, LAX)
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
