"""Honest kernels of a problem against its tolerance."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from mctskernel.experiments.tolerances import SumsInTurn, checked, in_turn
from tests.problems.kernelbench.problem_files import problem, written


@pytest.mark.parametrize("dims", [[0], [1], [0, 2]])
def test_sums_in_turn_are_sums(dims: list[int]) -> None:
    x = torch.rand(3, 600, 2)
    assert torch.allclose(in_turn(x, dims, keep=False), x.sum(dims), rtol=1e-5)
    with SumsInTurn():  # type: ignore[no-untyped-call] # PyTorch's has no types
        found = torch.var(x, dims, keepdim=True), x.mean(dims)
    assert torch.allclose(found[0], torch.var(x, dims, keepdim=True), rtol=1e-4)
    assert torch.allclose(found[1], x.mean(dims), rtol=1e-5)


def test_terms_are_added_one_after_another() -> None:
    few = torch.full((100_000,), 0.1)
    whole, found = float(few.double().sum()), float(in_turn(few, [0], keep=False))
    assert abs(found - whole) > 4 * abs(float(few.sum()) - whole)


@pytest.mark.slow
def test_honest_results_of_a_normalisation_are_within_its_tolerance(tmp_path: Path) -> None:
    text = problem(
        "return torch.sigmoid(self.norm(x))", "torch.rand(4, 8, 33)", init="self.norm = nn.GroupNorm(4, 8)"
    )
    least: list[float] = []
    found = list(checked(written(tmp_path, text), 1, least))
    assert {name for _, name, _, _ in found} == {"PyTorch", "sums in turn"}
    assert not [message for *_, message in found if message]
    assert all(error < 1e-3 for error in least)
    assert math.isfinite(float(np.median(least)))
