"""Errors beside what the model says of them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mctskernel.experiments.model.honesty import fitted_sigmas, honesty, pairs
from mctskernel.experiments.model.priced_kernels import Row
from mctskernel.profiling.model.price import Term, combined
from mctskernel.profiling.model.uncertainty import log_sigma


def row(us: float, modelled_us: float, terms: dict[str, float] | None = None, name: str = "n") -> Row:
    launch = terms or {Term.DRAM: modelled_us}
    launches = [{str(term): value for term, value in launch.items()}]
    return Row(folder="f", family="a", name=name, us=us, modelled_us=modelled_us, launches_us=launches)


def test_a_perfect_model_is_within_everything() -> None:
    found = honesty("a", [row(us, us) for us in (1.0, 10.0, 100.0)])
    assert (found.within_one, found.within_two, found.ratios_within_one) == (1.0, 1.0, 1.0)
    assert (found.ties, found.right) == (0.0, 1.0)


@pytest.mark.parametrize(("sigmas", "one", "two"), [(0.9, 1.0, 1.0), (1.5, 0.0, 1.0), (2.1, 0.0, 0.0)])
def test_times_are_counted_in_the_models_own_sigmas(sigmas: float, one: float, two: float) -> None:
    factor = math.exp(sigmas * log_sigma({Term.DRAM: 1e-6}))
    found = honesty("a", [row(us / factor, us) for us in (1.0, 10.0)])
    assert (found.within_one, found.within_two) == (one, two)
    assert found.ratios_within_one == 1.0


def test_what_is_too_close_is_a_tie_and_has_no_order() -> None:
    found = honesty("a", [row(1.0, 1.0), row(2.0, 1.001)])
    assert found.ties == 1.0
    assert math.isnan(found.right)


def test_a_confident_mistake_is_in_the_wrong_order() -> None:
    found = honesty("a", [row(1.0, 10.0), row(2.0, 1.0), row(4.0, 100.0)])
    assert found.ties == 0.0
    assert found.right == pytest.approx(2 / 3)


def test_pairs_are_of_different_kernels_and_not_too_many() -> None:
    rows = [row(1.0, 1.0, name=str(index)) for index in range(100)]
    found = pairs(rows)
    assert len(found) == len({(a.name, b.name) for a, b in found}) == 300
    assert all(first.name != second.name for first, second in found)
    assert found == pairs(rows)


def test_both_sigmas_are_found_in_planted_errors() -> None:
    rng = np.random.default_rng(3)
    families = []
    for _ in range(80):
        wrong = np.exp(0.3 * rng.standard_normal(2))
        family = []
        for _ in range(10):
            terms = {Term.DRAM: rng.lognormal(0.0, 1.5), Term.ISSUE: 1.0}
            true = combined({name: factor * terms[name] for name, factor in zip(terms, wrong, strict=True)})
            family.append(row(true * math.exp(0.05 * rng.standard_normal()), combined(terms), terms))
        families.append(family)
    term, rest = fitted_sigmas(families)
    assert term == pytest.approx(0.3, rel=0.3)
    assert rest == pytest.approx(0.05, rel=0.5)
