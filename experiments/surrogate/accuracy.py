"""How well modelled times rank measured ones, and whether the model errs as much as it says, space by space."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist

import msgspec
import numpy as np

from mctskernel.core.surrogate import Prediction
from mctskernel.core.task import Array
from mctskernel.experiments.model.ranking import PICKS, regret
from mctskernel.experiments.records.cluster_bootstrap import Interval, clustered_mean
from mctskernel.experiments.subjects.recorded_spaces import RecordedSpace
from mctskernel.experiments.surrogate.predictions import Known
from mctskernel.profiling.model.uncertainty import log_ratio_sigma
from mctskernel.report.comparison import rank_correlation

LEVELS = tuple(round(0.05 * step, 2) for step in range(1, 20))
"""Probabilities that a stated interval of a ratio is to cover."""

PAIRS = 300
"""Pairs of a space whose ratio is looked at, drawn at random where there are more."""


class Accuracy(msgspec.Struct, frozen=True):
    """A space: kernels that were measured and predicted, and how both agree.

    `first` and `best_of_five` are what the first pick, and the best of the first five, take over the true best.
    `coverage` are shares of pairs whose measured ratio lies in the central interval of each of `LEVELS` that the model
    states; `error_in_sigmas` is the root mean square of the error of a pair's log ratio over its stated deviation: 1
    where that is right. `points` are measured and modelled microseconds.
    """

    space: str
    task: str
    kernels: int
    unpriced: int
    spearman: float
    kendall: float
    first: float
    best_of_five: float
    coverage: tuple[float, ...]
    error_in_sigmas: float
    points: tuple[tuple[float, float], ...]


class Pooled(msgspec.Struct, frozen=True):
    """Means over spaces with their 95 % intervals, whole tasks drawn again."""

    spaces: int
    tasks: int
    kernels: int
    spearman: Interval
    kendall: Interval
    first: Interval
    best_of_five: Interval
    error_in_sigmas: Interval
    coverage: tuple[Interval, ...]


def accuracy(space: RecordedSpace, known: Known) -> Accuracy | None:
    """Of a space; None where fewer than three kernels were both measured and priced, or all took the same time."""
    both = [
        (seconds, found)
        for identity, seconds in space.seconds.items()
        if (found := known.get(identity)) is not None
    ]
    measured = np.array([seconds for seconds, _ in both])
    modelled = np.array([found.seconds for _, found in both])
    spearman = rank_correlation(measured, modelled)
    if len(both) < 3 or not np.ptp(measured):
        return None
    errors = np.abs(_errors_in_sigmas(measured, [found for _, found in both]))
    return Accuracy(
        space.name,
        space.task.name,
        len(both),
        len(space.seconds) - len(both),
        0.0 if math.isnan(spearman) else spearman,
        kendall(measured, modelled),
        regret(measured, modelled, 1),
        regret(measured, modelled, PICKS),
        tuple(float(np.mean(errors <= NormalDist().inv_cdf((1 + level) / 2))) for level in LEVELS),
        math.sqrt(float(np.mean(errors**2))),
        tuple((round(1e6 * seconds, 3), round(1e6 * found.seconds, 3)) for seconds, found in both),
    )


def pooled(rows: Sequence[Accuracy]) -> Pooled:
    """Every space counts alike, and the spaces of a task are drawn together: their kernels share what is wrong."""
    tasks = [row.task for row in rows]

    def mean(of: Callable[[Accuracy], float]) -> Interval:
        return clustered_mean([of(row) for row in rows], tasks)

    return Pooled(
        len(rows),
        len(set(tasks)),
        sum(row.kernels for row in rows),
        mean(lambda row: row.spearman),
        mean(lambda row: row.kendall),
        mean(lambda row: row.first),
        mean(lambda row: row.best_of_five),
        mean(lambda row: row.error_in_sigmas),
        tuple(clustered_mean([row.coverage[place] for row in rows], tasks) for place in range(len(LEVELS))),
    )


def kendall(first: Array, second: Array) -> float:
    """Kendall's rank correlation tau-b, which allows for ties; 0 where a side is constant.

    Source: Kendall, "The treatment of ties in ranking problems", 1945.
    """
    one, other = (np.sign(each[:, None] - each) for each in (first, second))
    ordered = math.sqrt(float(np.count_nonzero(one)) * float(np.count_nonzero(other)))
    return float((one * other).sum()) / ordered if ordered else 0.0


def _errors_in_sigmas(measured: Array, predictions: Sequence[Prediction]) -> Array:
    """The errors of the log ratios of pairs over their stated standard deviations."""
    logs = np.log(measured) - np.log([found.seconds for found in predictions])
    first, second = np.triu_indices(len(measured), 1)
    chosen = np.random.default_rng(0).permutation(len(first))[:PAIRS]
    return np.array(
        [
            (logs[one] - logs[other]) / log_ratio_sigma(predictions[one].terms, predictions[other].terms)
            for one, other in zip(first[chosen], second[chosen], strict=True)
        ]
    )
