"""Recorded spaces searched again by the real loop, with and without a surrogate, and what that saves."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from mctskernel.core.executor import Prediction
from mctskernel.core.kernel import Kernel
from mctskernel.executors.forecaster import Forecaster
from mctskernel.experiments.recorded_spaces import RecordedProposer, RecordedSpace, executor_of
from mctskernel.experiments.results import Interval, clustered_mean
from mctskernel.experiments.simulated_search import grow
from mctskernel.experiments.surrogate_accuracy import Known
from mctskernel.profiling.model.price import log_ratio_sigma
from mctskernel.report.resampling import sign_flip_p
from mctskernel.tree.policy import Policy

LIMIT = 80
"""Evaluations of a search, at the most."""

CHECKPOINTS = (5, 10, 20, 40)
"""Evaluations after which the best kernel is reported."""

TARGETS = (1.05, 1.01)
"""Times over that of the best kernel of the space at which a search has reached it."""

EVALUATION_SECONDS = (0.2, 1.0, 10.0, 60.0)
"""What an evaluation may cost, from a kernel on an H100 to a build that takes a minute."""

RANDOM_SIGMA = 0.5
"""Standard deviation of the logarithm of a random prediction."""

OFF = "off"


class Replays(msgspec.Struct, frozen=True):
    """Searches of a space in one way, a column for each seed.

    `evaluations` and `predictions` are those until the best of the space was reached to within each of `TARGETS`, the
    starting kernel's evaluation included; where it wasn't, all that were made. `best` is the time of the best kernel
    found over that of the space's after each of `CHECKPOINTS`. A search ends at the last target.
    """

    space: str
    task: str
    contender: str
    evaluations: tuple[tuple[int, ...], ...]
    predictions: tuple[tuple[int, ...], ...]
    best: tuple[tuple[float, ...], ...]


class Saved(msgspec.Struct, frozen=True):
    """Until a target: mean evaluations and predictions, and evaluations without a surrogate over those with one.

    `ratio` is the geometric mean over spaces and seeds with its interval, whole tasks drawn again; `p` that of flipping
    the signs of the tasks' means, 1 for the search without a surrogate.
    """

    target: float
    evaluations: float
    predictions: float
    ratio: Interval
    p: float


class Savings(msgspec.Struct, frozen=True):
    """A way to search, over some spaces.

    `best` is the geometric mean of the best time over that of the space after each of `CHECKPOINTS`. `speedups` are
    seconds without a surrogate over those with it, until the first target, for each of `EVALUATION_SECONDS`, if each
    prediction is waited for on one core. It pays from `break_even_seconds` an evaluation on; None if it never does.
    """

    contender: str
    best: tuple[float, ...]
    saved: tuple[Saved, ...]
    speedups: tuple[float, ...]
    break_even_seconds: float | None


@dataclass
class FixedSurrogate:
    """A surrogate whose predictions are known already and cost no time."""

    predictions: Callable[[Kernel], Prediction | None]
    sigma: Callable[[Prediction, Prediction], float]
    capacity: int = 4
    asked: int = 0
    _finished: list[tuple[int, Prediction | None]] = field(default_factory=list)

    def submit(self, ticket: int, kernel: Kernel) -> None:
        """Make a prediction."""
        self.asked += 1
        self._finished.append((ticket, self.predictions(kernel)))

    def wait(self, timeout: float | None = None) -> list[tuple[int, Prediction | None]]:  # noqa: ARG002 - nothing takes time here
        """Return the finished predictions."""
        finished, self._finished = self._finished, []
        return finished

    def uncertainty(self, first: Prediction, second: Prediction) -> float:
        """The standard deviation of the logarithm of the ratio of two predictions."""
        return self.sigma(first, second)

    def close(self) -> None:
        """Do nothing: nothing is open."""


def _modelled(space: RecordedSpace, known: Known, _seed: int) -> FixedSurrogate:
    renamed = {each: known.get(space.origins.get(each, each)) for each in space.kernels}
    return FixedSurrogate(
        lambda kernel: renamed.get(kernel.identity),
        lambda first, second: log_ratio_sigma(first.terms, second.terms),
    )


def _perfect(space: RecordedSpace, _known: Known, _seed: int) -> FixedSurrogate:
    measured = {each: Prediction(seconds, {}) for each, seconds in space.seconds.items()}
    return FixedSurrogate(lambda kernel: measured.get(kernel.identity), lambda _first, _second: 0.01)


def _random(_space: RecordedSpace, _known: Known, seed: int) -> FixedSurrogate:
    def predict(kernel: Kernel) -> Prediction:
        drawn = hashlib.sha256(f"{seed} {kernel.identity}".encode()).digest()
        normal = np.random.default_rng(int.from_bytes(drawn[:8])).standard_normal()
        return Prediction(1e-3 * math.exp(RANDOM_SIGMA * float(normal)), {})

    return FixedSurrogate(predict, lambda _first, _second: 0.05)


CONTENDERS: Mapping[str, Callable[[RecordedSpace, Known, int], FixedSurrogate] | None] = {
    OFF: None,
    "model": _modelled,
    "perfect": _perfect,
    "random": _random,
}
"""Ways to search: the surrogate of a space and a seed, None for a search without."""


def replays(space: RecordedSpace, known: Known, contender: str, seeds: int) -> Replays:
    """Search a space once for each seed."""
    found = [_searched(space, known, contender, seed) for seed in range(seeds)]
    reached = [[each.reached(target) for each in found] for target in TARGETS]
    return Replays(
        space.name,
        space.task.name,
        contender,
        tuple(tuple(count for count, _ in row) for row in reached),
        tuple(tuple(asked for _, asked in row) for row in reached),
        tuple(tuple(round(each.best_after(count), 4) for each in found) for count in CHECKPOINTS),
    )


def savings(found: Sequence[Replays], prediction_seconds: Mapping[str, float]) -> list[Savings]:
    """Compare each contender with the search without a surrogate, which must be there, on the same spaces and seeds."""
    by_contender: dict[str, dict[str, Replays]] = {}
    for each in found:
        by_contender.setdefault(each.contender, {})[each.space] = each
    off = by_contender[OFF]
    return [_savings(name, off, each, prediction_seconds) for name, each in by_contender.items()]


@dataclass(frozen=True)
class _Searched:
    """After each evaluation: the best time so far over that of the space, and predictions asked for."""

    best: Sequence[float]
    asked: Sequence[int]

    def reached(self, target: float) -> tuple[int, int]:
        """Evaluations and predictions until a target."""
        count = next((number for number, each in enumerate(self.best, 1) if each <= target), len(self.best))
        return count, self.asked[count - 1]

    def best_after(self, count: int) -> float:
        return self.best[min(count, len(self.best)) - 1]


def _searched(space: RecordedSpace, known: Known, contender: str, seed: int) -> _Searched:
    surrogate_of = CONTENDERS[contender]
    surrogate = surrogate_of(space, known, seed) if surrogate_of else None
    optimum = min(space.seconds.values())
    best: list[float] = []
    asked: list[int] = []

    def see(identity: str) -> None:
        ratio = space.seconds.get(identity, math.inf) / optimum
        best.append(min(ratio, best[-1]) if best else ratio)
        asked.append(surrogate.asked if surrogate else 0)

    grow(
        space.start(seed),
        task=space.task,
        policy=Policy(strategy="mcts", order="predicted" if surrogate else "prior"),
        seed=seed,
        proposer=RecordedProposer(space, seed),
        executor=executor_of(space, seen=see),
        budget=min(LIMIT, len(space.evaluations)),
        forecaster_of=(lambda search: Forecaster(search, surrogate, wait=True)) if surrogate else None,
        stop_requested=lambda: bool(best) and best[-1] <= TARGETS[-1],
    )
    return _Searched(best, asked)


def _savings(
    name: str,
    off: Mapping[str, Replays],
    found: Mapping[str, Replays],
    prediction_seconds: Mapping[str, float],
) -> Savings:
    evaluations = math.fsum(float(np.mean(each.evaluations[0])) for each in off.values())
    fewer = math.fsum(float(np.mean(found[space].evaluations[0])) for space in off)
    predicting = math.fsum(
        float(np.mean(found[space].predictions[0])) * prediction_seconds.get(space, 0.0) for space in off
    )
    best = np.array([np.log(each.best).mean(axis=1) for each in found.values()])
    return Savings(
        name,
        tuple(float(each) for each in np.exp(best.mean(axis=0))),
        tuple(_saved(place, off, found) for place in range(len(TARGETS))),
        tuple(evaluations * cost / (fewer * cost + predicting) for cost in EVALUATION_SECONDS),
        predicting / (evaluations - fewer) if evaluations > fewer else None,
    )


def _saved(target: int, off: Mapping[str, Replays], found: Mapping[str, Replays]) -> Saved:
    tasks = [off[space].task for space in off]
    means = [
        float(np.mean(np.log(off[space].evaluations[target]) - np.log(found[space].evaluations[target])))
        for space in off
    ]
    of_tasks = [
        float(np.mean([mean for mean, task in zip(means, tasks, strict=True) if task == one]))
        for one in dict.fromkeys(tasks)
    ]
    ratio = clustered_mean(means, tasks)
    return Saved(
        TARGETS[target],
        float(np.mean([np.mean(found[space].evaluations[target]) for space in off])),
        float(np.mean([np.mean(found[space].predictions[target]) for space in off])),
        Interval(math.exp(ratio.mean), math.exp(ratio.low), math.exp(ratio.high)),
        sign_flip_p(np.array(of_tasks)),
    )
