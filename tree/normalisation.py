"""Normalisation: brings worths to a scale on which one exploration weight fits every task."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from mctskernel.tree.vector import Array


def min_max(values: Array, low: float, high: float) -> Array:
    """0 for the least reward of the whole tree, 1 for the greatest; 0.5 while they are equal.

    Source: Schrittwieser et al., "Mastering Atari, Go, chess and shogi by planning with a learned model",
    2020, equation 5 (there over the values of nodes).
    """
    if high <= low:
        return np.full(len(values), 0.5)
    return (values - low) / (high - low)


def unchanged(values: Array, low: float, high: float) -> Array:  # noqa: ARG001
    """Rewards as they are."""
    return values


Normalisation = Callable[[Array, float, float], Array]

NORMALISATIONS: Mapping[str, Normalisation] = {"min-max": min_max, "none": unchanged}
