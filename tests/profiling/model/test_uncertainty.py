"""Errors that kernels share cancel in their ratio."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mctskernel.profiling.model.price import Term, combined, shares
from mctskernel.profiling.model.uncertainty import REST_SIGMA, TERM_SIGMA, log_ratio_sigma, log_sigma

TERMS = st.dictionaries(st.sampled_from(list(Term)), st.floats(1e-9, 1e-2), min_size=1, max_size=8)


@given(TERMS)
def test_shares_add_up_to_one_and_none_is_negative(terms: dict[Term, float]) -> None:
    found = shares(terms)
    assert math.fsum(found.values()) == pytest.approx(1.0)
    assert min(found.values()) >= 0.0


@given(TERMS, st.floats(0.1, 10.0))
def test_a_time_in_other_units_is_as_certain(terms: dict[Term, float], factor: float) -> None:
    scaled = {term: factor * seconds for term, seconds in terms.items()}
    assert combined(scaled) == pytest.approx(factor * combined(terms))
    assert log_sigma(scaled) == pytest.approx(log_sigma(terms), rel=1e-3)


@given(TERMS, TERMS)
def test_a_ratio_is_as_certain_both_ways(terms: dict[Term, float], others: dict[Term, float]) -> None:
    assert log_ratio_sigma(terms, others) == pytest.approx(log_ratio_sigma(others, terms))
    assert log_ratio_sigma(terms, others) >= math.sqrt(2) * REST_SIGMA


@given(TERMS)
def test_kernels_that_spend_their_time_alike_err_alike(terms: dict[Term, float]) -> None:
    assert log_ratio_sigma(terms, terms) == pytest.approx(math.sqrt(2) * REST_SIGMA)


def test_kernels_on_different_terms_err_apart() -> None:
    found = log_ratio_sigma({Term.DRAM: 1e-3}, {Term.FMA: 1e-3})
    assert found == pytest.approx(math.sqrt(2 * TERM_SIGMA**2 + 2 * REST_SIGMA**2), rel=1e-3)
