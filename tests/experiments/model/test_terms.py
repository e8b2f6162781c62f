"""Prices made again from their terms, and constants fitted to them."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mctskernel.experiments.model.family_splits import GROUPS, fit, fit_on, leave_one_out
from mctskernel.experiments.model.priced_kernels import Row
from mctskernel.experiments.model.ranking import by_family
from mctskernel.experiments.model.terms import Terms, in_one_norm, naive_baselines, terms_of
from mctskernel.profiling.counters import DRAM_BYTES, INSTRUCTIONS, L2_SECTORS, OCCUPANCY
from mctskernel.profiling.model.price import Term, combined

TERMS = st.dictionaries(st.sampled_from(Term), st.floats(0.0, 1e4), min_size=1)


def row(*launches: dict[Term, float], family: str = "sum", us: float = 1.0, gaps: float = 0.0) -> Row:
    return Row(
        folder="f",
        family=family,
        name="n",
        us=us,
        modelled_us=1.0,
        launches_us=[{str(term): value for term, value in launch.items()} for launch in launches],
        gaps_us=gaps,
    )


@given(st.lists(TERMS, min_size=1, max_size=3), st.floats(0.0, 10.0))
def test_terms_add_up_to_what_the_model_says(launches: list[dict[Term, float]], gaps: float) -> None:
    expected = gaps + sum(
        1e6 * combined({term: 1e-6 * value for term, value in launch.items()}) for launch in launches
    )
    found = terms_of([row({Term.FMA: 7.0}), row(*launches, gaps=gaps)]).microseconds()
    assert found[1] == pytest.approx(expected)
    assert found[0] == pytest.approx(7.0)


def test_a_term_is_left_out_of_every_launch() -> None:
    terms = terms_of([row({Term.FMA: 3.0, Term.LATENCY: 50.0}, {Term.FMA: 4.0, Term.LATENCY: 1.0}, gaps=2.0)])
    assert terms.microseconds(without=(Term.LATENCY,)) == pytest.approx([9.0])


def test_a_factor_multiplies_its_term() -> None:
    terms = terms_of([row({Term.FMA: 3.0, Term.LAUNCH: 1.0})])
    assert terms.microseconds(factors={Term.FMA: 2.0}) == pytest.approx([7.0])


@pytest.mark.parametrize(("norm", "expected"), [(1.0, 7.0), (2.0, 5.0), (math.inf, 4.0)])
def test_one_norm_goes_from_the_sum_to_the_largest_and_adds_what_overlaps_with_nothing(
    norm: float, expected: float
) -> None:
    terms = terms_of([row({Term.FMA: 3.0, Term.DRAM: 4.0, Term.LAUNCH: 2.0, Term.TAIL: 1.0})])
    assert terms.microseconds(in_one_norm(norm)) == pytest.approx([expected + 3.0])


def test_a_part_of_the_families_keeps_its_own_launches() -> None:
    rows = [
        row({Term.FMA: 1.0}, {Term.FMA: 2.0}, family="a", us=10.0),
        row({Term.FMA: 5.0}, family="b", us=20.0),
        row({Term.FMA: 7.0}, {Term.FMA: 8.0}, family="c", us=30.0, gaps=1.0),
    ]
    part = terms_of(rows).of(("a", "c"))
    assert part.families == ("a", "c")
    assert part.measured.tolist() == [10.0, 30.0]
    assert part.microseconds() == pytest.approx([3.0, 16.0])


def test_baselines_rank_by_what_they_are_called() -> None:
    counters = {OCCUPANCY: 50.0, DRAM_BYTES: 640.0, L2_SECTORS: 10.0, INSTRUCTIONS: 7.0}
    launch = {Term.FMA: 3.0, Term.DRAM: 2.0, Term.ISSUE: 99.0}
    found = naive_baselines([Row(**{**_fields(row(launch, launch)), "counters": counters})])
    assert {name: value.tolist() for name, value in found.items()} == {
        "occupancy": [-50.0],
        "DRAM bytes": [640.0],
        "bytes at L2": [320.0],
        "instructions": [7.0],
        "roofline": [6.0],
    }


def _fields(of: Row) -> dict[str, object]:
    return {name: getattr(of, name) for name in of.__struct_fields__}


FACTORS = {"instructions": 1.0, "wavefronts": 1.0, "L2": 1.0, "DRAM": 0.5, "latency": 2.0}
"""What the true GPU of these tests differs from the model by."""


def world(families: str = "abcd", kernels: int = 30) -> Terms:
    """Families of kernels on a GPU whose DRAM and latency differ from the model's, each on a scale of its own."""
    rng = np.random.default_rng(5)
    names = (Term.ISSUE, Term.GLOBAL_WAVEFRONTS, Term.L2, Term.DRAM, Term.LATENCY)
    rows = [
        row(dict(zip(names, rng.lognormal(3.0, 1.0, len(names)), strict=True)), family=family)
        for family in families
        for _ in range(kernels)
    ]
    terms = terms_of(rows)
    truth = {term: FACTORS[group] for group, members in GROUPS.items() for term in members}
    scale = np.repeat([10.0**index for index in range(len(families))], kernels)
    return Terms(
        terms.families,
        scale * terms.microseconds(factors=truth),
        terms.names,
        terms.launches,
        terms.kernel,
        terms.gaps,
    )


def test_a_fit_finds_the_factors_up_to_their_common_scale() -> None:
    found = fit(world(), "abc")
    scale = found["instructions"]
    assert {name: value / scale for name, value in found.items()} == pytest.approx(FACTORS, rel=0.15)


def test_a_family_that_is_tested_has_no_say_in_the_fit() -> None:
    terms = world()
    spoilt = Terms(
        terms.families,
        np.where(np.array(terms.families) == "d", terms.measured[::-1], terms.measured),
        terms.names,
        terms.launches,
        terms.kernel,
        terms.gaps,
    )
    (clean,) = (split for split in leave_one_out(terms) if "d" not in split.fitted)
    (other,) = (split for split in leave_one_out(spoilt) if "d" not in split.fitted)
    assert clean.factors == other.factors
    assert [each.family for each in clean.tested] == ["d"]
    assert clean.tested[0].correlation > other.tested[0].correlation


def test_fitted_constants_rank_better_than_wrong_ones() -> None:
    terms = world()
    unfitted = {each.family: each for each in by_family(terms.families, terms.measured, terms.microseconds())}
    for split in leave_one_out(terms):
        (tested,) = split.tested
        assert tested.correlation > unfitted[tested.family].correlation
        assert tested.correlation > 0.99


def test_every_choice_of_families_is_fitted_once_and_tests_the_others() -> None:
    splits = list(fit_on(world(kernels=5), 2))
    assert [split.fitted for split in splits] == list(combinations("abcd", 2))
    for split in splits:
        assert {each.family for each in split.tested} == set("abcd") - set(split.fitted)


def test_there_is_no_split_of_too_few_families() -> None:
    terms = world("ab", kernels=5)
    assert list(fit_on(terms, 2)) == []
    assert [split.fitted for split in leave_one_out(terms)] == [("b",), ("a",)]
    assert list(leave_one_out(terms.of("a"))) == []
