"""A cheap opinion of a kernel that nobody has run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from mctskernel.core.kernel import Kernel


@dataclass(frozen=True)
class Prediction:
    """A predicted time of one run of the launch plan, in seconds: the geometric mean over the search shapes.

    `terms` are the seconds that each part of the GPU would take alone; two predictions whose terms are alike
    err alike, so that their ratio is known better than either of them.
    """

    seconds: float
    terms: Mapping[str, float]


class Surrogate(Protocol):
    """Predicts in the background, many kernels at once."""

    def predict(self, kernels: tuple[Kernel, ...]) -> tuple[Prediction | None, ...]:
        """One prediction for each kernel, in order; None where there is no opinion (it doesn't build, say)."""
        ...

    def close(self) -> None:
        """Stop at once, what is in flight included."""
        ...
