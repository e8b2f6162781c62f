"""Weights that nobody can do without."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
weights = pytest.importorskip("mctskernel.profiling.pytorch.weights")


def test_no_parameter_and_no_statistic_is_constant() -> None:
    with weights.varied_initialisation():
        model = torch.nn.Sequential(
            torch.nn.LayerNorm(16), torch.nn.BatchNorm1d(16), torch.nn.GroupNorm(2, 16)
        )
    for name, tensor in model.state_dict().items():
        assert tensor.dim() == 0 or len(tensor.unique()) > 1, name
    assert (model[1].running_var > 0).all()


def test_a_seed_repeats_them() -> None:
    def made() -> torch.nn.Module:
        torch.manual_seed(3)
        with weights.varied_initialisation():
            return torch.nn.Sequential(torch.nn.LayerNorm(16), torch.nn.Linear(16, 4))

    first, second = made().state_dict(), made().state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_parameters_that_are_constant_all_the_same_are_varied() -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(8))
            self.shift = torch.nn.Parameter(torch.zeros(8))

    model = Scaled()
    weights.vary_constants(model)
    assert len(model.scale.unique()) > 1 and len(model.shift.unique()) > 1


def test_afterwards_modules_begin_as_ever() -> None:
    with weights.varied_initialisation():
        pass
    norm = torch.nn.BatchNorm1d(4)
    assert (norm.weight == 1).all() and (norm.running_mean == 0).all()
