"""A cheap opinion of a kernel that nobody has run."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from mctskernel.core.kernel import Kernel


class SurrogateUse(enum.StrEnum):
    """What a search does with predictions.

    ORDER tries a node's edits in the order of their predicted gain; FILTER also compares, for each evaluation,
    several tries of several nodes and takes the most promising.
    """

    OFF = "off"
    ORDER = "order"
    FILTER = "filter"


@dataclass(frozen=True)
class Prediction:
    """A predicted time of one run of the launch plan, in seconds: the geometric mean over the search shapes.

    `terms` are the seconds that each part of the GPU would take alone; two predictions whose terms are alike
    err alike, so that their ratio is known better than either of them.
    """

    seconds: float
    terms: Mapping[str, float]


class Surrogate(Protocol):
    """Predicts in the background, several kernels at a time."""

    @property
    def capacity(self) -> int:
        """How many predictions can be in flight without one waiting for another."""
        ...

    def submit(self, ticket: int, kernel: Kernel) -> None:
        """Begin a prediction. `ticket`, not in flight already, comes back with its result."""
        ...

    def wait(self, timeout: float | None = None) -> list[tuple[int, Prediction | None]]:
        """The predictions that have finished since the last call, waiting for the first of them.

        None where there is no opinion: the kernel doesn't build, say. Empty when nothing is in flight, or when
        nothing finished in `timeout` seconds.
        """
        ...

    def uncertainty(self, first: Prediction, second: Prediction) -> float:
        """One standard deviation of the logarithm of the error of the ratio of two predicted times."""
        ...

    def close(self) -> None:
        """Stop at once, what is in flight included."""
        ...
