"""How well one set of times ranks kernels that another set has measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from mctskernel.core.task import Array
from mctskernel.report.comparison import rank_correlation

PICKS = 5


@dataclass(frozen=True)
class Ranking:
    """What a ranking is worth in one family.

    `correlation` is Spearman's, NaN where either side is constant. `first` and `best_of_five` are the measured time of
    the first pick, and of the best of the first five, over that of the true best. `quartiles` are of modelled over
    measured time.
    """

    family: str
    kernels: int
    correlation: float
    first: float
    best_of_five: float
    quartiles: tuple[float, float, float]


@dataclass(frozen=True)
class Summary:
    """Rankings of several families: means, and the worst of each. A correlation that is NaN counts as zero."""

    correlation: float
    worst_correlation: float
    first: float
    worst_first: float
    best_of_five: float
    worst_best_of_five: float


def rank(family: str, measured: Array, modelled: Array) -> Ranking:
    """Compare two sets of times, each in the same unit."""
    low, middle, high = np.percentile(modelled / measured, [25, 50, 75])
    return Ranking(
        family,
        len(measured),
        rank_correlation(measured, modelled),
        regret(measured, modelled, 1),
        regret(measured, modelled, PICKS),
        (float(low), float(middle), float(high)),
    )


def regret(measured: Array, modelled: Array, picks: int) -> float:
    """Measured time of the best among the first `picks`, over that of the true best.

    Among kernels that the ranking holds for equal the slowest comes first, so that no order of the file flatters it.
    """
    chosen = np.lexsort((-measured, modelled))[:picks]
    return float(measured[chosen].min() / measured.min())


def summarise(rankings: Sequence[Ranking]) -> Summary:
    """Means and worst cases over families. Raises ValueError without any."""
    correlations = [0.0 if math.isnan(each.correlation) else each.correlation for each in rankings]
    first = [each.first for each in rankings]
    five = [each.best_of_five for each in rankings]
    return Summary(
        float(np.mean(correlations)),
        min(correlations),
        float(np.mean(first)),
        max(first),
        float(np.mean(five)),
        max(five),
    )


def by_family(
    families: Sequence[str], measured: Array, modelled: Array, only: Callable[[str], bool] = lambda _: True
) -> list[Ranking]:
    """A ranking for each family with two kernels and more, in their order of appearance."""
    of = np.array(families)
    wanted: Iterable[str] = (family for family in dict.fromkeys(families) if only(family))
    members = ((family, of == family) for family in wanted)
    return [rank(family, measured[at], modelled[at]) for family, at in members if np.count_nonzero(at) > 1]
