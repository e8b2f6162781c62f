"""The model's predictions for the kernels of recorded spaces, and how well they agree with the measured times."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import NormalDist

import msgspec
import numpy as np

from mctskernel.core.executor import Prediction
from mctskernel.core.task import Array
from mctskernel.experiments.json_lines import LineLog, read_lines
from mctskernel.experiments.model_tables import PICKS, regret
from mctskernel.experiments.recorded_spaces import RecordedSpace
from mctskernel.experiments.results import Interval, clustered_mean
from mctskernel.profiling.architecture import load_architecture
from mctskernel.profiling.model.price import log_ratio_sigma
from mctskernel.profiling.pricing import PricingDevice, prediction_of
from mctskernel.report.resampling import rank_correlation

LEVELS = (0.5, 0.8, 0.95)
"""Probabilities that a stated interval of a ratio is to cover."""

PAIRS = 300
"""Pairs of a space whose ratio is compared, drawn at random where there are more."""

Known = Mapping[str, Prediction | None]
"""Predictions of a space by the identity of a kernel; None where the model has none."""


class Predicted(msgspec.Struct, frozen=True):
    """A prediction for a kernel: seconds, None where the model has none, and its terms.

    `cpu_seconds` include the compilers and disassemblers that it started.
    """

    space: str
    kernel: str
    seconds: float | None
    terms: dict[str, float]
    cpu_seconds: float = 0.0


class Accuracy(msgspec.Struct, frozen=True):
    """A space: kernels that were measured and predicted, and how both agree.

    `first` and `best_of_five` are the times of the first pick, and of the best of the first five, over the true best.
    `coverage` are shares of pairs whose measured ratio lies in the central interval of each of `LEVELS` that the model
    states; `error_in_sigmas` is the root mean square of the error of a pair's log ratio over its stated deviation.
    """

    space: str
    task: str
    kernels: int
    unpriced: int
    spearman: float
    first: float
    best_of_five: float
    coverage: tuple[float, ...]
    error_in_sigmas: float


class Pooled(msgspec.Struct, frozen=True):
    """Means over spaces with their 95 % intervals, whole tasks drawn again."""

    kernels: int
    spearman: Interval
    first: Interval
    best_of_five: Interval
    error_in_sigmas: Interval
    coverage: tuple[Interval, ...]


def predict(spaces: Iterable[RecordedSpace], architecture: str, cache: Path) -> Iterator[Predicted]:
    """Yield a row for every kernel of the spaces: from the file where it has one, otherwise priced and appended."""
    gpu = load_architecture(architecture)
    known = {(row.space, row.kernel): row for row in read_lines(cache, msgspec.json.Decoder(Predicted))}
    log = LineLog[Predicted](cache)
    for space in spaces:
        task, device = space.task, PricingDevice(space.task, gpu)
        for identity in space.evaluations:
            row = known.get((space.name, identity))
            if row is None:
                if (own := space.tasks.get(identity, task)) is not task:
                    task, device = own, PricingDevice(own, gpu)
                row = _priced(space, identity, device)
                log.append(row)
            yield row


def by_space(rows: Iterable[Predicted]) -> dict[str, dict[str, Prediction | None]]:
    """Group predictions by the name of a space."""
    found: dict[str, dict[str, Prediction | None]] = {}
    for row in rows:
        prediction = Prediction(row.seconds, row.terms) if row.seconds else None
        found.setdefault(row.space, {})[row.kernel] = prediction
    return found


def accuracy(space: RecordedSpace, known: Known) -> Accuracy | None:
    """Compare a space; None where fewer than three kernels were measured and priced, or all took the same time."""
    both = [
        (seconds, found)
        for identity, seconds in space.seconds.items()
        if (found := known.get(identity)) is not None
    ]
    measured = np.array([seconds for seconds, _ in both])
    modelled = np.array([found.seconds for _, found in both])
    if len(both) < 3 or not np.ptp(measured):
        return None
    spearman = rank_correlation(measured, modelled)
    errors = np.abs(_errors_in_sigmas(measured, [found for _, found in both]))
    return Accuracy(
        space.name,
        space.task.name,
        len(both),
        len(space.seconds) - len(both),
        0.0 if math.isnan(spearman) else spearman,
        regret(measured, modelled, 1),
        regret(measured, modelled, PICKS),
        tuple(float(np.mean(errors <= NormalDist().inv_cdf((1 + level) / 2))) for level in LEVELS),
        math.sqrt(float(np.mean(errors**2))),
    )


def pooled(rows: Sequence[Accuracy]) -> Pooled:
    """Average spaces; those of one task are drawn together, because their errors depend on each other."""
    tasks = [row.task for row in rows]

    def mean(of: Callable[[Accuracy], float]) -> Interval:
        return clustered_mean([of(row) for row in rows], tasks)

    return Pooled(
        sum(row.kernels for row in rows),
        mean(lambda row: row.spearman),
        mean(lambda row: row.first),
        mean(lambda row: row.best_of_five),
        mean(lambda row: row.error_in_sigmas),
        tuple(clustered_mean([row.coverage[place] for row in rows], tasks) for place in range(len(LEVELS))),
    )


def _priced(space: RecordedSpace, identity: str, device: PricingDevice) -> Predicted:
    began = sum(os.times()[:4])
    found = prediction_of(device.evaluate(space.kernels[identity]))
    spent = sum(os.times()[:4]) - began
    seconds, terms = (found.seconds, dict(found.terms)) if found else (None, {})
    return Predicted(space.name, identity, seconds, terms, spent)


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
