"""Weights that nobody can do without: a model's parameters, drawn so that none of them is a constant.

Modules begin with biases of zero and scales of one, and a candidate that leaves them out would look right.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

SPREAD = 0.1


@contextlib.contextmanager
def varied_initialisation() -> Iterator[None]:
    """While this lasts, what modules would fill with a constant gets noise from PyTorch's generator."""
    norm = torch.nn.modules.batchnorm._NormBase
    before = {name: getattr(torch.nn.init, name) for name in ("zeros_", "ones_", "constant_")}
    reset = norm.reset_running_stats
    for name, fill in before.items():
        setattr(torch.nn.init, name, _noisy(fill))
    norm.reset_running_stats = _noisy_statistics(reset)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for name, fill in before.items():
            setattr(torch.nn.init, name, fill)
        norm.reset_running_stats = reset  # type: ignore[method-assign]


def vary_constants(model: Any) -> None:
    """Add noise to those floating-point parameters that are constant all the same."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point() and parameter.numel() and _is_constant(parameter):
                add_noise(parameter)


def add_noise(tensor: Any) -> Any:
    """Noise of a tenth of each value, or of one where it is zero; no sign changes."""
    if not tensor.is_floating_point():
        return tensor
    with torch.no_grad():
        noise = torch.rand(tensor.shape, dtype=torch.float32, device="cpu").mul_(2).sub_(1).to(tensor)
        return tensor.add_(SPREAD * noise * torch.where(tensor == 0, torch.ones_like(tensor), tensor.abs()))


def _noisy(fill: Callable[..., Any]) -> Callable[..., Any]:
    def filled(tensor: Any, *values: Any, **named: Any) -> Any:
        return add_noise(fill(tensor, *values, **named))

    return filled


def _noisy_statistics(reset: Callable[..., None]) -> Callable[..., None]:
    def filled(module: Any) -> None:
        reset(module)
        if module.track_running_stats:
            add_noise(module.running_mean)
            add_noise(module.running_var)

    return filled


def _is_constant(tensor: Any) -> bool:
    return bool((tensor == tensor.flatten()[0]).all())
