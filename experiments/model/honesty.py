"""Whether the model's errors are as large as it says: of times, and of the ratios that decide which is shorter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mctskernel.core.task import Array
from mctskernel.experiments.model.priced_kernels import Row
from mctskernel.profiling.model.price import shares
from mctskernel.profiling.model.uncertainty import log_ratio_sigma, log_sigma

PAIRS = 300
"""Pairs of each family that are looked at, drawn at random where there are more."""


@dataclass(frozen=True)
class Honesty:
    """Of a family: fractions of kernels, and of pairs of them.

    `within_one` and `within_two` are kernels whose modelled time is within one and two standard deviations of the
    measured one; 0.68 and 0.95 where errors are Gaussian and as large as said. `ties` are pairs that the model can't
    tell apart, whose modelled ratio is within one standard deviation of one; `right` are those of the others that it
    puts in the right order, NaN without any. `ratios_within_one` are pairs whose ratio is as close as said.
    """

    family: str
    within_one: float
    within_two: float
    ties: float
    right: float
    ratios_within_one: float


def honesty(family: str, rows: Sequence[Row]) -> Honesty:
    """Of at least two rows with a price."""
    errors = np.array([_error(row) / log_sigma(_seconds(row)) for row in rows])
    modelled, measured, sigmas = (np.array(each) for each in zip(*map(_ratio, pairs(rows)), strict=True))
    told_apart = np.abs(modelled) > sigmas
    right = np.sign(modelled) == np.sign(measured)
    return Honesty(
        family,
        _fraction(np.abs(errors) <= 1),
        _fraction(np.abs(errors) <= 2),
        _fraction(~told_apart),
        _fraction(right[told_apart]),
        _fraction(np.abs(modelled - measured) <= sigmas),
    )


def fitted_sigmas(families: Sequence[Sequence[Row]]) -> tuple[float, float]:
    """The standard deviations of a term's and of the remaining log error that pairs show.

    The squared error of a pair's log ratio is d^2 T^2 + 2 R^2 where d is how much the shares of its terms differ
    (`profiling.model.uncertainty`): a straight line, fitted to the means of ten bins of d, as many pairs in each.
    """
    both = [pair for rows in families if len(rows) > 1 for pair in pairs(rows)]
    distances = np.array([_distance(first, second) for first, second in both])
    squares = np.array([(_error(first) - _error(second)) ** 2 for first, second in both])
    bins = np.array_split(np.argsort(distances), 10)
    means = np.array([(distances[each].mean(), squares[each].mean()) for each in bins if len(each)])
    slope, offset = np.polyfit(means[:, 0], means[:, 1], 1) if len(means) > 1 else (0.0, means[0, 1])
    return math.sqrt(max(slope, 0.0)), math.sqrt(max(offset, 0.0) / 2)


def pairs(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Pairs of a family's kernels, the same ones every time."""
    every = [(first, second) for index, first in enumerate(rows) for second in rows[:index]]
    chosen = np.random.default_rng(0).permutation(len(every))[:PAIRS]
    return [every[index] for index in chosen]


def _ratio(pair: tuple[Row, Row]) -> tuple[float, float, float]:
    """The logarithms of a pair's modelled and measured ratio, and what the first may be off by."""
    first, second = pair
    measured = math.log(first.us / second.us)
    return (
        measured + _error(first) - _error(second),
        measured,
        log_ratio_sigma(_seconds(first), _seconds(second)),
    )


def _error(row: Row) -> float:
    return math.log((row.modelled_us or row.us) / row.us)


def _seconds(row: Row) -> dict[str, float]:
    """The terms of all launches together."""
    terms: dict[str, float] = {}
    for launch in row.launches_us:
        for name, microseconds in launch.items():
            terms[name] = terms.get(name, 0.0) + 1e-6 * microseconds
    return terms


def _distance(first: Row, second: Row) -> float:
    """The squared difference of what terms make up of two kernels' times."""
    one, other = shares(_seconds(first)), shares(_seconds(second))
    return math.fsum((one.get(name, 0.0) - other.get(name, 0.0)) ** 2 for name in {*one, *other})


def _fraction(truths: Array) -> float:
    return float(np.mean(truths)) if len(truths) else math.nan
