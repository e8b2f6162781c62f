"""What searches with a surrogate save of those without: evaluations and seconds, seed by seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from mctskernel.experiments.records.cluster_bootstrap import Interval, clustered_mean
from mctskernel.experiments.surrogate.replays import OFF, TARGETS, Replays
from mctskernel.report.resampling import sign_flip_p

EVALUATION_SECONDS = (0.2, 1.0, 10.0, 60.0)
"""What an evaluation may cost: on an H100 by this project, over a network or with many shapes, by the usual routes."""


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


class Worth(msgspec.Struct, frozen=True):
    """A way to search, over some spaces.

    `best` is the geometric mean of the best time over that of the space after each of `CHECKPOINTS`. `speedups` are
    seconds without a surrogate over those with it, until the first target, for each of `EVALUATION_SECONDS`, each
    prediction waited for on one core. From `break_even_seconds` an evaluation on it pays, None if it never does.
    """

    contender: str
    best: tuple[float, ...]
    saved: tuple[Saved, ...]
    speedups: tuple[float, ...]
    break_even_seconds: float | None


def worth(replays: Sequence[Replays], prediction_seconds: Mapping[str, float]) -> list[Worth]:
    """Each contender against the search without a surrogate, which must be there, on the same spaces and seeds."""
    by_contender: dict[str, dict[str, Replays]] = {}
    for each in replays:
        by_contender.setdefault(each.contender, {})[each.space] = each
    off = by_contender[OFF.name]
    return [_worth(name, off, found, prediction_seconds) for name, found in by_contender.items()]


def _worth(
    name: str,
    off: Mapping[str, Replays],
    found: Mapping[str, Replays],
    prediction_seconds: Mapping[str, float],
) -> Worth:
    evaluations = [_mean(each.evaluations[0]) for each in off.values()]
    fewer = [_mean(found[space].evaluations[0]) for space in off]
    predicting = [_mean(found[space].predictions[0]) * prediction_seconds.get(space, 0.0) for space in off]
    left, spent = sum(evaluations) - sum(fewer), sum(predicting)
    best = np.array([np.log(each.best).mean(axis=1) for each in found.values()])
    return Worth(
        name,
        tuple(float(each) for each in np.exp(best.mean(axis=0))),
        tuple(_saved(place, off, found) for place in range(len(TARGETS))),
        tuple(sum(evaluations) * cost / (sum(fewer) * cost + spent) for cost in EVALUATION_SECONDS),
        spent / left if left > 0 else None,
    )


def _saved(target: int, off: Mapping[str, Replays], found: Mapping[str, Replays]) -> Saved:
    logs = {
        space: np.log(off[space].evaluations[target]) - np.log(found[space].evaluations[target])
        for space in off
    }
    tasks = [off[space].task for space in off]
    means = [float(each.mean()) for each in logs.values()]
    of_tasks = [
        float(np.mean([mean for mean, task in zip(means, tasks, strict=True) if task == one]))
        for one in dict.fromkeys(tasks)
    ]
    ratio = clustered_mean(means, tasks)
    return Saved(
        TARGETS[target],
        float(np.mean([_mean(found[space].evaluations[target]) for space in off])),
        float(np.mean([_mean(found[space].predictions[target]) for space in off])),
        Interval(math.exp(ratio.mean), math.exp(ratio.low), math.exp(ratio.high)),
        sign_flip_p(np.array(of_tasks)),
    )


def _mean(values: Sequence[int]) -> float:
    return math.fsum(values) / len(values)
