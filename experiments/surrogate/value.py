"""Surrogates that know what they will say: the truth, the model's word, or nothing worth knowing."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from mctskernel.core.kernel import Kernel
from mctskernel.core.surrogate import Prediction
from mctskernel.experiments.strategies.simulated_search import ForecasterOf
from mctskernel.experiments.subjects.recorded_spaces import RecordedSpace
from mctskernel.forecast import Forecaster
from mctskernel.predictions import Predictions
from mctskernel.profiling.model.uncertainty import log_ratio_sigma
from mctskernel.tree.search import TreeSearch

RANDOM_SIGMA = 0.5
"""Standard deviation of the logarithm of a time that a surrogate makes up."""


@dataclass
class LookedUp:
    """A surrogate that knows its predictions already, and gives as many of them as it `may` by now."""

    predictions: Callable[[Kernel], Prediction | None]
    sigma: Callable[[Prediction, Prediction], float]
    capacity: int = 4
    asked: int = 0
    may: Callable[[], float] = lambda: math.inf
    _answered: int = 0
    _finished: list[tuple[int, Prediction | None]] = field(default_factory=list)

    def submit(self, ticket: int, kernel: Kernel) -> None:
        """Begin and end a prediction."""
        self.asked += 1
        self._finished.append((ticket, self.predictions(kernel)))

    def wait(self, timeout: float | None = None) -> list[tuple[int, Prediction | None]]:  # noqa: ARG002 - nothing takes time here
        """What there was time for."""
        count = int(min(len(self._finished), self.may() - self._answered))
        finished, self._finished = self._finished[:count], self._finished[count:]
        self._answered += count
        return finished

    def uncertainty(self, first: Prediction, second: Prediction) -> float:
        """As it was given."""
        return self.sigma(first, second)

    def close(self) -> None:
        """Nothing is open."""


def perfect(space: RecordedSpace) -> LookedUp:
    """A surrogate that predicts what was measured."""
    known = {each: Prediction(seconds, {}) for each, seconds in space.seconds.items()}
    return LookedUp(lambda kernel: known.get(kernel.identity), lambda _first, _second: 0.01)


def made_up(seed: int) -> LookedUp:
    """A surrogate that draws times, and is sure of them."""

    def predict(kernel: Kernel) -> Prediction:
        drawn = hashlib.sha256(f"{seed} {kernel.identity}".encode()).digest()
        normal = np.random.default_rng(int.from_bytes(drawn[:8])).standard_normal()
        return Prediction(1e-3 * math.exp(RANDOM_SIGMA * float(normal)), {})

    return LookedUp(predict, lambda _first, _second: 0.05)


def modelled(known: Mapping[str, Prediction | None]) -> LookedUp:
    """The model's predictions, with its own uncertainty."""
    return LookedUp(
        lambda kernel: known.get(kernel.identity),
        lambda first, second: log_ratio_sigma(first.terms, second.terms),
    )


def forecasting(surrogate: LookedUp, rate: float | None = None) -> ForecasterOf:
    """What lets a search go by a surrogate that predicts `rate` kernels for each evaluation; None: as it likes."""

    def forecaster_of(tree_search: TreeSearch) -> Forecaster:
        if rate is not None:
            surrogate.may = lambda: rate * tree_search.tree.evaluations
        return Forecaster(tree_search, Predictions(surrogate), wait=rate is None)

    return forecaster_of
