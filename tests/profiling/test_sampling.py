"""Samples of large tensors: what is wrong in a sampled row is seen, and rows stay aligned."""

from __future__ import annotations

import numpy as np
import pytest

from mctskernel.core.task import Tolerance
from mctskernel.profiling.sampling import ROWS, sampled, whole
from mctskernel.profiling.verify import Case, Values, judge


def case(extents: tuple[int, ...]) -> Case:
    x = np.random.default_rng(0).standard_normal(extents).astype(np.float32)
    truth = 2 * x.astype(np.float64)
    return Case({}, 0, Values.DRAWN, {"x": x}, {"out": truth}, {"out": 2 * x}, Tolerance())


@pytest.mark.parametrize("extents", [(4000, 8), (40, 100, 8), (3 * 4096 * 1000,), (5003,), (16, 8), (7,)])
def test_a_right_result_passes_whatever_rows_are_chosen(extents: tuple[int, ...]) -> None:
    full = case(extents)
    sample = sampled(full, np.random.default_rng(1))
    out = {"out": sample.rows_of("out", 2 * full.inputs["x"])}
    assert judge(sample.case, out, {"x": sample.rows_of("x", full.inputs["x"])}).passed


@pytest.mark.parametrize("wrong", [0, 3999])
def test_the_first_and_the_last_row_are_always_compared(wrong: int) -> None:
    full = case((4000, 8))
    result = 2 * full.inputs["x"]
    result[wrong, 3] += 1
    sample = sampled(full, np.random.default_rng(1))
    assert not judge(sample.case, {"out": sample.rows_of("out", result)}).passed


def test_a_kernel_that_is_wrong_in_every_tenth_row_is_seen() -> None:
    full = case((4000, 8))
    result = 2 * full.inputs["x"]
    result[5::10] = 0
    sample = sampled(full, np.random.default_rng(1))
    assert not judge(sample.case, {"out": sample.rows_of("out", result)}).passed


def test_rows_differ_from_one_sample_to_the_next_and_are_few() -> None:
    full, rng = case((4000, 8)), np.random.default_rng(1)
    first, second = sampled(full, rng), sampled(full, rng)
    assert len(first.rows["out"]) == ROWS == len(set(first.rows["out"].tolist()))
    assert first.rows["out"].tolist() != second.rows["out"].tolist()


def test_a_whole_case_leaves_nothing_out() -> None:
    full = case((4000, 8))
    assert whole(full).rows_of("out", full.inputs["x"]) is full.inputs["x"]
