"""Recorded spaces searched again by the real loop, with and without a surrogate, and what that saves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from mctskernel.core.executor import Prediction
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Array
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


@dataclass(frozen=True)
class Savings:
    """A way to search, over some spaces; pairs and triples are until each of `TARGETS`.

    `evaluations` and `predictions` are means. `ratios` are evaluations without a surrogate over those with it, the
    geometric mean over spaces and seeds, whole tasks drawn again; `p` flips the signs of the tasks' means. `best` is
    the geometric mean of the best time over that of the space after each of `CHECKPOINTS`. `speedups` are seconds
    without a surrogate over those with it, until the first target, for each of `EVALUATION_SECONDS`, if each prediction
    is waited for on one core.
    """

    contender: str
    evaluations: tuple[float, ...]
    predictions: tuple[float, ...]
    ratios: tuple[Interval, ...]
    p: tuple[float, ...]
    best: tuple[float, ...]
    speedups: tuple[float, ...]


@dataclass
class FixedSurrogate:
    """A surrogate whose predictions are known already and cost no time."""

    predictions: Known
    sigma: Callable[[Prediction, Prediction], float]
    capacity: int = 4
    asked: int = 0
    _finished: list[tuple[int, Prediction | None]] = field(default_factory=list)

    def submit(self, ticket: int, kernel: Kernel) -> None:
        """Make a prediction."""
        self.asked += 1
        self._finished.append((ticket, self.predictions.get(kernel.identity)))

    def wait(self, timeout: float | None = None) -> list[tuple[int, Prediction | None]]:  # noqa: ARG002 - nothing takes time here
        """Return the finished predictions."""
        finished, self._finished = self._finished, []
        return finished

    def uncertainty(self, first: Prediction, second: Prediction) -> float:
        """The standard deviation of the logarithm of the ratio of two predictions."""
        return self.sigma(first, second)

    def close(self) -> None:
        """Do nothing: nothing is open."""


def _modelled(space: RecordedSpace, known: Known) -> FixedSurrogate:
    renamed = {each: known.get(space.origins.get(each, each)) for each in space.kernels}
    return FixedSurrogate(renamed, lambda first, second: log_ratio_sigma(first.terms, second.terms))


def _perfect(space: RecordedSpace, _known: Known) -> FixedSurrogate:
    measured = {each: Prediction(seconds, {}) for each, seconds in space.seconds.items()}
    return FixedSurrogate(measured, lambda _first, _second: 0.01)


CONTENDERS: Mapping[str, Callable[[RecordedSpace, Known], FixedSurrogate] | None] = {
    OFF: None,
    "model": _modelled,
    "perfect": _perfect,
}
"""Ways to search: the surrogate of a space, None for a search without."""


def replays(space: RecordedSpace, known: Known, contender: str, seeds: int) -> Replays:
    """Search a space once for each seed."""
    found = [_searched(space, known, contender, seed) for seed in range(seeds)]
    reached = [[_reached(best, target) for best, _ in found] for target in TARGETS]
    return Replays(
        space.name,
        space.task.name,
        contender,
        tuple(map(tuple, reached)),
        tuple(
            tuple(asked[count - 1] for count, (_, asked) in zip(row, found, strict=True)) for row in reached
        ),
        tuple(tuple(round(best[min(count, len(best)) - 1], 4) for best, _ in found) for count in CHECKPOINTS),
    )


def _reached(best: Sequence[float], target: float) -> int:
    """Evaluations until a target."""
    return next((number for number, each in enumerate(best, 1) if each <= target), len(best))


def savings(found: Sequence[Replays], prediction_seconds: Mapping[str, float]) -> list[Savings]:
    """Compare each contender with the search without a surrogate, which must be there, on the same spaces and seeds."""
    by_contender: dict[str, dict[str, Replays]] = {}
    for each in found:
        by_contender.setdefault(each.contender, {})[each.space] = each
    off = by_contender[OFF]
    return [_savings(name, off, each, prediction_seconds) for name, each in by_contender.items()]


def _searched(space: RecordedSpace, known: Known, contender: str, seed: int) -> tuple[list[float], list[int]]:
    """After each evaluation: the best time so far over that of the space, and predictions asked for."""
    surrogate_of = CONTENDERS[contender]
    surrogate = surrogate_of(space, known) if surrogate_of else None
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
        policy=Policy(),
        seed=seed,
        proposer=RecordedProposer(space, seed),
        executor=executor_of(space, seen=see),
        budget=min(LIMIT, len(space.evaluations)),
        forecaster_of=(lambda search: Forecaster(search, surrogate, wait=True)) if surrogate else None,
        stop_requested=lambda: bool(best) and best[-1] <= TARGETS[-1],
    )
    return best, asked


def _savings(
    name: str,
    off: Mapping[str, Replays],
    found: Mapping[str, Replays],
    prediction_seconds: Mapping[str, float],
) -> Savings:
    pairs = [(each, found[space]) for space, each in off.items()]
    tasks = [each.task for each, _ in pairs]
    evaluations = [_means([each.evaluations for _, each in pairs], target) for target in range(len(TARGETS))]
    predictions = [_means([each.predictions for _, each in pairs], target) for target in range(len(TARGETS))]
    fewer = [
        [
            float(np.mean(np.log(one.evaluations[target]) - np.log(other.evaluations[target])))
            for one, other in pairs
        ]
        for target in range(len(TARGETS))
    ]
    ratios = [clustered_mean(each, tasks) for each in fewer]
    without = math.fsum(_means([each.evaluations for each, _ in pairs], 0))
    predicting = math.fsum(
        asked * prediction_seconds.get(each.space, 0.0)
        for asked, (each, _) in zip(predictions[0], pairs, strict=True)
    )
    best = np.array([np.log(each.best).mean(axis=1) for each in found.values()])
    return Savings(
        name,
        evaluations=tuple(float(np.mean(each)) for each in evaluations),
        predictions=tuple(float(np.mean(each)) for each in predictions),
        ratios=tuple(Interval(*map(math.exp, (each.mean, each.low, each.high))) for each in ratios),
        p=tuple(sign_flip_p(_by_task(each, tasks)) for each in fewer),
        best=tuple(float(each) for each in np.exp(best.mean(axis=0))),
        speedups=tuple(
            without * cost / (math.fsum(evaluations[0]) * cost + predicting) for cost in EVALUATION_SECONDS
        ),
    )


def _means(rows: Sequence[tuple[tuple[int, ...], ...]], target: int) -> list[float]:
    return [float(np.mean(row[target])) for row in rows]


def _by_task(values: Sequence[float], tasks: Sequence[str]) -> Array:
    """The mean of each task's values."""
    return np.array(
        [
            np.mean([value for value, task in zip(values, tasks, strict=True) if task == one])
            for one in dict.fromkeys(tasks)
        ]
    )
