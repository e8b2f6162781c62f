from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import mctskernel.experiments
import mctskernel.tasks.builtin
from mctskernel.core.dtypes import smallest_normal
from mctskernel.core.task import Array, Task, Tolerance
from mctskernel.core.task_file import load_task
from mctskernel.profiling.comparison import DENORMAL_NOISE, compare
from mctskernel.profiling.input_values import FIRST, IN_TURN, Values, poison
from mctskernel.profiling.verify import PRECISE, check_outputs, draw_case, draw_cases

TASKS = Path(mctskernel.tasks.builtin.__file__).parent
PLAIN = Path(mctskernel.experiments.__file__).parent / "plain_suite"
FOLDERS = sorted(file.parent for folder in (TASKS, PLAIN) for file in folder.glob("*/task.toml"))
TOLERANCE = Tolerance(relative=1e-5, absolute=1e-6, ratio=16)


@pytest.fixture(scope="module")
def softmax() -> Task:
    return load_task(TASKS / "softmax")


def truth() -> Array:
    return np.random.default_rng(1).standard_normal((6, 40))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_plain_implementation_passes_every_case_of_its_task(folder: Path) -> None:
    task = load_task(folder)
    shapes = (*task.verify_shapes, *task.held_out_shapes)
    for case in draw_cases(task, shapes, 0, turns=len(IN_TURN)):
        check = check_outputs(case, case.plain)
        assert check.passed, check.message


def test_special_values_are_among_the_cases(softmax: Task) -> None:
    verified = [draw_cases(softmax, softmax.verify_shapes, seed) for seed in range(len(IN_TURN))]
    always = {*FIRST, Values.DRAWN, Values.NAN, Values.INFINITY}
    assert all(always < {case.values for case in cases} for cases in verified)
    applicable = set(Values) - {Values.DENORMAL, Values.EXTREMES}
    assert {case.values for cases in verified for case in cases} == applicable
    assert {
        case.values for case in draw_cases(softmax, softmax.held_out_shapes, 0, turns=len(IN_TURN))
    } == applicable


def all_nan(out: Array) -> Array:
    return np.full_like(out, np.nan)


def all_zero(out: Array) -> Array:
    return np.zeros_like(out)


def infinite_in_one_place(out: Array) -> Array:
    out[-1, -1] = np.inf
    return out


def rows_off_by_one(out: Array) -> Array:
    return np.roll(out, 1, axis=0)


def last_column_unwritten(out: Array) -> Array:
    out[:, -1] = poison("float32", out.shape)[:, -1]
    return out


def half_precision(out: Array) -> Array:
    return out.astype(np.float16).astype(np.float32)


@pytest.mark.parametrize(
    "cheat",
    [all_nan, all_zero, infinite_in_one_place, rows_off_by_one, last_column_unwritten, half_precision],
)
def test_a_cheat_is_found(softmax: Task, cheat: Callable[[Array], Array]) -> None:
    case = draw_case(softmax, {"rows": 7, "cols": 130}, 5)
    check = check_outputs(case, {"out": cheat(case.plain["out"].copy())})
    assert not check.passed
    assert "got" in check.message
    assert check.error > 1


def test_an_input_changed_in_place_is_found(softmax: Task) -> None:
    case = draw_case(softmax, {"rows": 7, "cols": 130}, 5)
    after = {"x": case.inputs["x"].copy()}
    assert check_outputs(case, case.plain, after).passed
    # The same number with another sign bit: only a comparison of bits sees it.
    case.inputs["x"][3, 3] = 0.0
    after["x"][3, 3] = -0.0
    check = check_outputs(case, case.plain, after)
    assert not check.passed
    assert "'x' was changed in place" in check.message


def test_the_ratio_test_finds_lowered_precision_that_the_tolerance_allows() -> None:
    expected = truth()
    plain = expected.astype(np.float32)
    lax = Tolerance(relative=1e-2, absolute=1e-9, ratio=16)
    assert compare(plain, expected, plain, lax).passed
    lowered = compare(expected.astype(np.float16).astype(np.float32), expected, plain, lax)
    assert "16 times that" in lowered.message


def test_special_results_pass_where_the_reference_has_the_same() -> None:
    expected = np.array([[np.inf, -np.inf, np.nan, 1.0, 1e39]])
    actual = np.array([[np.inf, -np.inf, np.nan, 1.0, np.inf]], np.float32)
    assert compare(actual, expected, actual, TOLERANCE).passed
    actual[0, 1] = np.inf
    assert not compare(actual, expected, actual, TOLERANCE).passed
    unwritten = poison("float32", (1, 5))
    unwritten[0, [0, 1, 3, 4]] = [np.inf, -np.inf, 1.0, np.inf]
    assert not compare(unwritten, expected, actual, TOLERANCE).passed


def test_equal_numbers_from_a_range_have_exact_sums(softmax: Task) -> None:
    (x,) = softmax.inputs
    task = replace(softmax, inputs=(replace(x, distribution="uniform", low=-0.0313, high=0.0312),))
    for values in (Values.LARGE, Values.CONSTANT_ROWS):
        rows = draw_case(task, {"rows": 7, "cols": 999}, 5, values).inputs["x"]
        assert (rows == rows[:, :1]).all()
        assert np.abs(rows).max() <= 0.0313
        np.testing.assert_array_equal(np.cumsum(rows, 1)[:, -1], 999 * rows[:, 0].astype(np.float64))


@pytest.mark.parametrize(("size", "wrong"), [(1e-4, 2e-9), (1e-20, 1e-25), (1e-60, 1e-30)])
def test_the_absolute_tolerance_shrinks_once_with_small_outputs(size: float, wrong: float) -> None:
    lax = replace(TOLERANCE, relative=0.0, ratio=float("inf"))
    expected = np.full((2, 3), size)
    noise = np.full_like(expected, DENORMAL_NOISE * smallest_normal(np.dtype(np.float32)))
    for known in (None, noise):
        for error, passes in ((0.5e-6 * size, True), (wrong, False)):
            found = compare((expected + error).astype(np.float32), expected, expected, lax, noise=known)
            assert found.passed is passes


def test_numbers_whose_results_overflow_on_the_way_tell_nothing_of_precision(softmax: Task) -> None:
    growing = replace(softmax, reference=lambda x: np.cumprod(2.0**40 * x.astype(np.float64), -1))
    cases = draw_cases(growing, growing.verify_shapes, 0)
    assert not PRECISE.intersection(case.values for case in cases if np.isinf(case.plain["out"]).any())
