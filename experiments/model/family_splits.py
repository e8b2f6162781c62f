"""Fit the model's constants on some families of kernels, and see how it ranks the others.

What is fitted is a factor on each of five groups of terms, by ridge regression of the logarithm of modelled over
measured time, each family's mean taken off: only the order within a family counts, and a factor that the families
say nothing about stays at one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from mctskernel.core.task import Array
from mctskernel.experiments.model.ranking import Ranking, by_family
from mctskernel.experiments.model.terms import Terms
from mctskernel.profiling.model.price import Term

GROUPS: Mapping[str, tuple[Term, ...]] = {
    "instructions": (Term.ISSUE, Term.FMA, Term.ALU, Term.SPECIAL, Term.FP64, Term.TENSOR),
    "wavefronts": (Term.GLOBAL_WAVEFRONTS, Term.SHARED_WAVEFRONTS),
    "L2": (Term.L2,),
    "DRAM": (Term.DRAM,),
    "latency": (Term.LATENCY,),
}

RIDGE = 0.01
"""Weight of a squared log factor against the mean squared log error of a family."""

MOST_SPLITS = 60

STEP = 1e-4
ITERATIONS = 20
ENOUGH = 1e-7
"""A gain in the squared error that is not worth another step."""

MOST = 3.0
"""A factor is at most e to this, and at least e to its negative."""


@dataclass(frozen=True)
class Split:
    """Families that were fitted, the factors that came of it, and rankings of all the others."""

    fitted: tuple[str, ...]
    factors: Mapping[str, float]
    tested: tuple[Ranking, ...]


def leave_one_out(terms: Terms) -> Iterator[Split]:
    """Each family ranked with the constants of all others."""
    families = tuple(dict.fromkeys(terms.families))
    for family in families:
        others = tuple(each for each in families if each != family)
        if others:
            yield _split(terms, others)


def fit_on(terms: Terms, count: int) -> Iterator[Split]:
    """Every choice of `count` families to fit on, the others tested; of many choices, `MOST_SPLITS` at random."""
    families = tuple(dict.fromkeys(terms.families))
    if count >= len(families):
        return
    choices = list(itertools.combinations(families, count))
    kept = np.random.default_rng(0).permutation(len(choices))[:MOST_SPLITS]
    for index in sorted(map(int, kept)):
        yield _split(terms, choices[index])


def _split(terms: Terms, fitted: tuple[str, ...]) -> Split:
    factors = fit(terms, fitted)
    modelled = terms.microseconds(factors=_by_term(factors))
    tested = by_family(terms.families, terms.measured, modelled, only=lambda family: family not in fitted)
    return Split(fitted, factors, tuple(tested))


def fit(terms: Terms, families: Collection[str]) -> dict[str, float]:
    """A factor for each group of terms, from the kernels of some families."""
    known = terms.of(families)
    members = [np.flatnonzero(np.array(known.families) == family) for family in families]

    def residuals(logs: Array) -> Array:
        errors = np.log(known.microseconds(factors=_by_term(_named(np.exp(logs)))) / known.measured)
        parts = [(errors[at] - errors[at].mean()) / np.sqrt(len(at)) for at in members if len(at)]
        return np.concatenate([*parts, np.sqrt(RIDGE) * logs])

    return _named(np.exp(_least_squares(residuals, len(GROUPS))))


def _named(factors: Array) -> dict[str, float]:
    return {group: float(factor) for group, factor in zip(GROUPS, factors, strict=True)}


def _by_term(factors: Mapping[str, float]) -> dict[str, float]:
    return {term: factors[group] for group, terms in GROUPS.items() for term in terms}


def _least_squares(residuals: Callable[[Array], Array], count: int) -> Array:
    """Gauss and Newton's method from zero, with steps halved until they help; the derivative is a difference."""
    at = np.zeros(count)
    here = residuals(at)
    for _ in range(ITERATIONS):
        slopes = np.stack([(residuals(at + STEP * unit) - here) / STEP for unit in np.eye(count)], axis=1)
        step = np.linalg.lstsq(slopes, -here)[0]
        for _ in range(ITERATIONS):
            nearby = np.clip(at + step, -MOST, MOST)
            there = residuals(nearby)
            if there @ there < here @ here:
                break
            step = step / 2
        else:
            return at
        gain = here @ here - there @ there
        at, here = nearby, there
        if gain < ENOUGH:
            return at
    return at
