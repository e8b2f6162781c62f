"""Sharing evaluations among recorded searches: what hindsight can do, and that every arm meets the same searches."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from mctskernel.campaign.allocation import Improvement
from mctskernel.experiments.campaign_allocation import (
    ARMS,
    EACH,
    OURS,
    Kernel,
    compared,
    document,
    drawn,
    in_hindsight,
    outcomes,
    spent,
)
from mctskernel.experiments.records.documents import Table
from mctskernel.experiments.strategies.traces import Trace


def a_trace(space: str, seed: int, *improvements: tuple[int, float], evaluations: int = 60) -> Trace:
    return Trace(space=space, contender="mcts", seed=seed, evaluations=evaluations, improvements=improvements)


TRACES = [
    a_trace("made_one", 0, (1, 0.2), (3, 0.4), (20, 0.9)),
    a_trace("made_two", 0, (2, 0.5), (4, 0.6), (5, 0.7)),
    a_trace("made_two", 1, (1, 0.7), (30, 1.0)),
    a_trace("made_three", 0, (1, 0.1), (40, 1.0), evaluations=41),
]


def test_hindsight_is_the_best_of_all_ways_to_share() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        model = [
            Kernel(
                float(share),
                tuple(
                    Improvement(int(place), 0.3 * (rank + 1) * float(rng.random() + rank))
                    for rank, place in enumerate(sorted(rng.choice(np.arange(1, 7), 2, replace=False)))
                ),
                2.0,
                6,
            )
            for share in rng.dirichlet(np.ones(3))
        ]
        found = in_hindsight(model, 6)
        for evaluations in range(1, 7):
            ways = (ways for ways in product(range(7), repeat=3) if sum(ways) <= evaluations)
            best = min(sum(kernel.time(n) for kernel, n in zip(model, way, strict=True)) for way in ways)
            assert found[evaluations - 1] == pytest.approx(best)


def test_no_arm_beats_hindsight_and_all_meet_the_same_searches() -> None:
    for seed in range(5):
        model = drawn(TRACES, 4, seed)
        found = outcomes(model, 200)
        assert set(found) == {"", *ARMS}
        for times in found.values():
            assert times == sorted(times, reverse=True)
            assert all(each >= least - 1e-9 for each, least in zip(times, found[""], strict=True))
        ends = {round(times[-1], 9) for times in found.values()}
        assert ends == {round(sum(kernel.time(kernel.evaluations) for kernel in model), 9)}


def test_a_search_that_is_over_gets_nothing_more() -> None:
    model = [Kernel(0.9, (Improvement(1, 0.5),), 1.0, 2), Kernel(0.1, (Improvement(3, 0.5),), 1.0, 5)]
    *_, last = spent(model, ARMS[OURS], 7)
    assert last == pytest.approx(math.exp(-0.5))


def test_the_page_pairs_models_and_leaves_ours_without_a_test() -> None:
    report = compared(TRACES, 3, range(6))
    (section,) = document(report).sections
    (table,) = section.blocks
    assert isinstance(table, Table)
    assert len(table.rows) == len(ARMS) * len(EACH)
    assert [row[3:] for row in table.rows if row[0] == OURS] == [["", "", ""]] * len(EACH)
    assert all(row[3] for row in table.rows if row[0] != OURS)
