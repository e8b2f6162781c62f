"""Recorded spaces searched again by the real loop, with and without a surrogate; nothing is built or run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from mctskernel.core.surrogate import SurrogateUse
from mctskernel.experiments.strategies.simulated_search import grow
from mctskernel.experiments.subjects.recorded_spaces import RecordedProposer, RecordedSpace, executor_of
from mctskernel.experiments.surrogate.predictions import Known
from mctskernel.experiments.surrogate.value import LookedUp, forecasting, made_up, modelled, perfect
from mctskernel.tree.policy import Policy

LIMIT = 80
"""Evaluations of a search, at the most."""

CHECKPOINTS = (5, 10, 20, 40)
"""Evaluations after which the best kernel is looked at."""

TARGETS = (1.05, 1.01)
"""Times over that of the best kernel of the space at which a search has reached it."""


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
class Pace:
    """Evaluations in flight, and predictions that are made while one finishes; None: they are waited for."""

    in_flight: int = 1
    predictions: float | None = None


@dataclass(frozen=True)
class Contender:
    """A way to search: how predictions guide it, and the surrogate of a space and a seed.

    `candidates` are the edits that are compared for each evaluation.
    """

    name: str
    use: SurrogateUse
    surrogate: Callable[[RecordedSpace, Known, int], LookedUp | None]
    candidates: int = 1

    @property
    def policy(self) -> Policy:
        """What `mctskernel search --surrogate` takes, with the tree search in all of them."""
        if self.use is SurrogateUse.OFF:
            return Policy(strategy="mcts")
        return Policy(strategy="mcts", order="predicted", lookahead=self.candidates)


OFF = Contender("off", SurrogateUse.OFF, lambda _space, _known, _seed: None)

_SURROGATES: Mapping[str, Callable[[RecordedSpace, Known, int], LookedUp]] = {
    "model": lambda space, known, _seed: modelled(_renamed(space, known)),
    "perfect": lambda space, _known, _seed: perfect(space),
    "random": lambda _space, _known, seed: made_up(seed),
}

CONTENDERS = (
    OFF,
    Contender("order, model", SurrogateUse.ORDER, _SURROGATES["model"]),
    *(
        Contender(f"filter 4, {name}", SurrogateUse.FILTER, surrogate, 4)
        for name, surrogate in _SURROGATES.items()
    ),
    Contender("filter 8, model", SurrogateUse.FILTER, _SURROGATES["model"], 8),
)


def _renamed(space: RecordedSpace, known: Known) -> Known:
    """Predictions by the identities that a space's kernels have without their texts."""
    return {each: known.get(space.origins.get(each, each)) for each in space.kernels}


def replays(
    space: RecordedSpace, known: Known, contender: Contender, seeds: int, pace: Pace = Pace()
) -> Replays:
    """Search a space once for each seed."""
    found = [
        _searched(space, contender.policy, contender.surrogate(space, known, seed), seed, pace)
        for seed in range(seeds)
    ]
    reached = [[each.reached(target) for each in found] for target in TARGETS]
    return Replays(
        space.name,
        space.task.name,
        contender.name,
        tuple(tuple(count for count, _ in row) for row in reached),
        tuple(tuple(asked for _, asked in row) for row in reached),
        tuple(tuple(round(each.best_after(count), 4) for each in found) for count in CHECKPOINTS),
    )


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


def _searched(
    space: RecordedSpace, policy: Policy, surrogate: LookedUp | None, seed: int, pace: Pace
) -> _Searched:
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
        policy=policy,
        seed=seed,
        proposer=RecordedProposer(space, seed),
        executor=executor_of(space, pace.in_flight, see),
        budget=min(LIMIT, len(space.evaluations)),
        forecaster_of=forecasting(surrogate, pace.predictions) if surrogate else None,
        stop_requested=lambda: bool(best) and best[-1] <= TARGETS[-1],
    )
    return _Searched(best, asked)
