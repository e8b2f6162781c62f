"""The Gaussian process of the edit model against formulas and values worked by hand."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mctskernel.core.edit import Factor
from mctskernel.tree.edit_model.fitting import evidence_of, fit, loss_and_slope, prior_hyperparameters
from mctskernel.tree.edit_model.frontier import Vocabulary, table
from mctskernel.tree.edit_model.gaussian_process import (
    JITTER,
    Array,
    Distances,
    Hyperparameters,
    Posterior,
    covariance,
    distances,
)
from mctskernel.tree.edit_model.model import epoch

PLACES = 8


def apart(count: int) -> Array:
    """How far levels that are evenly spaced are from each other."""
    return np.abs(np.subtract.outer(np.arange(count), np.arange(count))) / (count - 1)


def vocabulary_of(*levels: tuple[str, tuple[float | str, ...]]) -> Vocabulary:
    found = Vocabulary()
    found.learn(Factor(name, level) for name, of in levels for level in of)
    return found


def rows_of(vocabulary: Vocabulary, *decided: dict[str, float | str]) -> Array:
    rows = [vocabulary.row((), (Factor(*item) for item in each.items())) for each in decided]
    return table(rows, PLACES)


def test_covariance_by_hand() -> None:
    vocabulary = vocabulary_of(("tile", (1, 2, 8)), ("layout", ("row", "column")))
    rows = rows_of(vocabulary, {"tile": 1, "layout": "row"}, {"tile": 8, "layout": "row"}, {"tile": 2})
    between = distances(vocabulary, places=4)
    lengths = np.full(PLACES, 0.5)
    found = covariance(
        between, Hyperparameters(lengths, main=4.0, pairs=12.0, whole=1.0, noise=0.0), rows, rows
    )
    ends, middle, other = math.exp(-1 / 0.5), math.exp(-0.5 / 0.5), math.exp(-1 / 0.5)
    # Of four places, three agree; pairs are six, of which three hold the place that doesn't.
    assert found[0, 1] == pytest.approx((3 + ends) + 2 * (3 + 3 * ends) + ends)
    # Two differ: one pair holds neither, four hold one of them, and one both.
    alike = [middle, other]
    pairs = 1 + 2 * sum(alike) + math.prod(alike)
    assert found[0, 2] == pytest.approx((2 + sum(alike)) + 2 * pairs + math.prod(alike))
    assert np.diag(found) == pytest.approx(4 + 12 + 1)


def test_levels_are_as_far_apart_as_their_ranks_and_words_as_can_be() -> None:
    vocabulary = vocabulary_of(("tile", (32, 1, 2)), ("layout", ("row", "column", "tiled")), ("hint", (1.0,)))
    between = distances(vocabulary, PLACES)
    tile, layout, hint = (between.tables[place] for place in (1, 2, 3))
    assert tile[1:, 1:].tolist() == [[0, 1, 0.5], [1, 0, 0.5], [0.5, 0.5, 0]]
    assert layout[1:, 1:].tolist() == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
    assert tile[0].tolist() == [0, 0.75, 0.75, 0.25]
    assert layout[0].tolist() == [0, 1, 1, 1]
    assert hint.tolist() == [[0, 0.25], [0.25, 0]]


tables = st.integers(1, 7).flatmap(
    lambda count: st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 2)), min_size=count, max_size=count
    )
)


def textbook(
    between: Distances, hyper: Hyperparameters, observed: Array, values: Array, candidates: Array
) -> tuple[Array, Array]:
    """Rewritten from Rasmussen and Williams, equations 2.25 and 2.26."""
    noisy = covariance(between, hyper, observed, observed) + (hyper.noise + JITTER) * np.eye(len(observed))
    across = covariance(between, hyper, candidates, observed)
    means = across @ np.linalg.solve(noisy, values)
    return means, hyper.variance - np.einsum("ij,ij->i", across, np.linalg.solve(noisy, across.T).T)


@given(seen=tables, asked=tables, data=st.data())
def test_a_posterior_grown_bit_by_bit_is_the_textbooks(
    seen: list[tuple[int, ...]], asked: list[tuple[int, ...]], data: st.DataObject
) -> None:
    between = Distances({0: apart(4), 1: apart(4), 2: 1 - np.eye(4)}, PLACES)
    hyper = Hyperparameters(np.array([0.3, 0.7, 2.0, *[0.7] * 5]), 1.0, 1.5, 0.5, 0.01)
    observed, candidates = table(seen, PLACES), table(asked, PLACES)
    values = np.array(data.draw(st.lists(st.floats(-3, 3), min_size=len(seen), max_size=len(seen))))
    first, shown = data.draw(st.integers(1, len(seen))), data.draw(st.integers(1, len(asked)))
    found = Posterior(between, hyper, observed[:first], candidates[:shown])
    for row in observed[first:]:
        found.observe(row)
    if shown < len(candidates):
        found.add(candidates[shown:])
    means, variances = textbook(between, hyper, observed, values, candidates)
    assert found.means(values) == pytest.approx(means, abs=1e-4)
    assert found.deviations**2 == pytest.approx(np.maximum(variances, 1e-9), abs=1e-4)


def test_a_pending_kernel_moves_no_mean_and_is_less_uncertain() -> None:
    between = Distances({0: apart(4)}, PLACES)
    hyper = prior_hyperparameters(between, table([(1,), (3,)], PLACES))
    rows = table([(0,), (1,), (2,), (3,)], PLACES)
    found = Posterior(between, hyper, rows[[0, 3]], rows)
    means, deviations = found.means(np.array([1.0, -1.0])), found.deviations
    found.observe(rows[1])
    believed = found.believed(np.array([1.0, -1.0, math.nan]))
    assert believed == pytest.approx([1.0, -1.0, means[1]])
    assert found.means(believed) == pytest.approx(means)
    assert found.deviations[1] < 0.2 * deviations[1]
    # What is expected of it follows from later results too.
    known = Posterior(between, hyper, rows[[0, 2]], rows)
    found = Posterior(between, hyper, rows[:3], rows)
    believed = found.believed(np.array([1.0, math.nan, 3.0]))
    assert believed[1] == pytest.approx(known.means(np.array([1.0, 3.0]))[1])
    assert found.means(believed) == pytest.approx(known.means(np.array([1.0, 3.0])))


def test_a_factor_that_does_nothing_gets_a_greater_length_than_one_that_does() -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 6, (60, 2))
    between, values = Distances({0: apart(6), 1: apart(6)}, PLACES), np.sin(rows[:, 0] * 2.0)
    hyper = fit(between, table(rows.tolist(), PLACES), (values - values.mean()) / values.std())
    assert hyper.lengths[1] > 4 * hyper.lengths[0]


def test_the_slope_is_that_of_the_loss() -> None:
    rng = np.random.default_rng(2)
    rows = rng.integers(0, 4, (12, 3))
    between = Distances(dict.fromkeys(range(3), apart(4)), PLACES)
    evidence = evidence_of(between, table(rows.tolist(), PLACES), rng.standard_normal(12))
    at = evidence.mean + 0.3 * rng.standard_normal(len(evidence.mean))
    _, slope = loss_and_slope(evidence, at)
    for number, step in enumerate(1e-5 * np.eye(len(at))):
        ahead, behind = (loss_and_slope(evidence, at + sign * step)[0] for sign in (1, -1))
        assert slope[number] == pytest.approx((ahead - behind) / 2e-5, rel=1e-4, abs=1e-4)


def test_fitting_doesnt_depend_on_when_factors_were_numbered() -> None:
    rng = np.random.default_rng(1)
    rows = rng.integers(0, 4, (30, 2))
    values = rng.standard_normal(30)
    one = fit(Distances({0: apart(4), 1: apart(4)}, PLACES), table(rows.tolist(), PLACES), values)
    swapped = fit(
        Distances({1: apart(4), 0: apart(4)}, PLACES), table(rows[:, ::-1].tolist(), PLACES), values
    )
    assert one.lengths[0] == swapped.lengths[1]
    assert all(getattr(one, each) == getattr(swapped, each) for each in ("main", "pairs", "whole", "noise"))


@pytest.mark.parametrize(
    ("evaluations", "last"), [(0, 0), (1, 1), (9, 9), (11, 10), (12, 12), (10_000, 9_684)]
)
def test_the_model_is_made_again_ever_more_seldom(evaluations: int, last: int) -> None:
    assert epoch(evaluations) == last


def test_epochs_follow_each_other() -> None:
    starts = sorted({epoch(count) for count in range(20_000)})
    assert all(epoch(start) == start for start in starts)
    gaps = [after - before for before, after in itertools.pairwise(starts)]
    assert all(gap >= max(1, before // 16) for gap, before in zip(gaps, starts, strict=False))
