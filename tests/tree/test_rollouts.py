"""Rollouts: where walks go because of what a line of edits is predicted to come to."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mctskernel.core.evaluation import Outcome
from mctskernel.tree.choices import with_settings
from mctskernel.tree.events import PredictionRecord, RolledOut, RolloutStep
from mctskernel.tree.fold import fold
from mctskernel.tree.journal import SCHEMA_VERSION, Journal, read_tree
from mctskernel.tree.legality import TreeError
from mctskernel.tree.policy import Policy, PolicyError
from mctskernel.tree.rollouts import ROLLOUTS, rolls_out
from mctskernel.tree.search import TreeSearch
from tests.tree.by_hand import Grown, edit
from tests.tree.test_search import Chaos


def line(*log_gains: float, sigma: float = 0.05) -> tuple[RolloutStep, ...]:
    records = (PredictionRecord(1.0, gain=math.exp(gain), sigma=sigma) for gain in log_gains)
    return tuple(RolloutStep(f"edit {number}", record) for number, record in enumerate(records))


def two_children(**policy: Any) -> Grown:
    """Node 1 got 1, node 2 got 0.8, and walks go to the child that is worth more."""
    settled = {"selection": "greedy", "widening": "fixed", "widening_factor": 2.0, "rollout": "greedy"}
    grown = Grown(**{**settled, **policy})
    assert grown.grow(0, 1.0, 0.8) == [1, 2]
    return grown


@pytest.mark.parametrize(("weight", "goes_to"), [(0.0, 1), (0.19, 1), (0.21, 2), (1.0, 2)])
def test_walks_go_to_what_is_slower_and_promises_more_if_that_counts_for_enough(
    weight: float, goes_to: int
) -> None:
    grown = two_children(rollout_weight=weight)
    # More than once: a child that keeps the lead may be gone to without a look at the others.
    assert [grown.path() for _ in range(3)] == [(0, 1)] * 3
    grown.search.rolled_out(2, line(-0.5, 1.0, 0.3))
    # 0.8 (1 - w) + (0.8 + 1) w = 0.8 + w, against 1.
    assert grown.path() == (0, goes_to)


def test_a_rollout_of_the_other_child_counts_as_much() -> None:
    grown = two_children()
    grown.search.rolled_out(2, line(1.0))
    grown.search.rolled_out(1, line(0.7))
    # 0.8 + 1 / 2 against 1 + 0.7 / 2.
    assert grown.path() == (0, 1)


def test_without_rollouts_in_the_policy_they_change_no_walk() -> None:
    grown = two_children(rollout="none")
    grown.search.rolled_out(2, line(9.0))
    assert grown.path() == (0, 1)


@pytest.mark.parametrize("steps", [(), line(0.99, sigma=1.0), line(-3.0), (RolloutStep("edit"),)])
def test_no_gain_beyond_the_uncertainty_is_none(steps: tuple[RolloutStep, ...]) -> None:
    grown = two_children(rollout_weight=1.0)
    grown.search.rolled_out(2, steps)
    assert grown.path() == (0, 1)
    assert grown.tree.rollouts == {2: 1.0}


@pytest.mark.parametrize(("gain", "goes_to"), [(0.39, (0, 1)), (0.41, (0, 2))])
def test_with_the_maximum_the_best_rollout_below_counts(gain: float, goes_to: tuple[int, ...]) -> None:
    grown = two_children(widening_factor=1.0)
    (child,) = grown.grow(2, 0.8)
    grown.search.rolled_out(2, line(0.1))
    grown.search.rolled_out(child, line(gain))
    # The greatest of 0.8 + 0.1 and 0.8 + gain, mixed half and half with 0.8, against 1.
    assert grown.path()[:2] == goes_to


@pytest.mark.parametrize(("gain", "goes_to"), [(1.19, (0, 1)), (1.21, (0, 2))])
def test_with_the_mean_rollouts_below_are_averaged(gain: float, goes_to: tuple[int, ...]) -> None:
    grown = two_children(widening_factor=1.0, value="mean")
    (child,) = grown.grow(2, 0.4)
    grown.search.rolled_out(2, line(0.4))
    grown.search.rolled_out(child, line(gain))
    # Mean reward (0.8 + 0.4) / 2, mean prospect (0.8 + 0.4 + 0.4 + gain) / 2, half of each: 0.7 + gain / 4.
    assert grown.path()[:2] == goes_to


def test_an_edit_of_a_line_is_the_likeliest_or_drawn() -> None:
    priors, rng = np.array([1.0, 3.0, 3.0]), np.random.default_rng(0)
    assert ROLLOUTS["none"](priors, rng) is None
    assert ROLLOUTS["greedy"](priors, rng) == 1
    drawn = [ROLLOUTS["sampled"](priors, rng) for _ in range(700)]
    assert [drawn.count(edit) / 100 for edit in range(3)] == pytest.approx([1, 3, 3], abs=0.5)


def test_rollouts_are_off_unless_asked_for_and_are_for_walks() -> None:
    assert not rolls_out(Policy(strategy="mcts"))
    assert rolls_out(Policy(strategy="mcts", rollout="sampled"))
    assert not rolls_out(Policy(strategy="mcts", rollout="sampled", rollout_weight=0.0))
    assert not rolls_out(Policy(strategy="greedy", rollout="sampled"))


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("rollout=long", "one of none, sampled, greedy"),
        ("rollout_weight=1.1", "from 0 to 1"),
        ("rollout_depth=0", "1 or more"),
    ],
)
def test_a_setting_that_cannot_be_is_a_sentence(setting: str, sentence: str) -> None:
    with pytest.raises(PolicyError, match=sentence):
        with_settings(Policy(), [setting])


def test_a_rollout_that_cannot_follow_is_refused() -> None:
    grown = two_children()
    grown.search.rolled_out(2, line(1.0))
    grown.offer(0, edit("in flight"))
    begun = grown.begin(0, 2)
    for node, sentence in ((7, "no node 7"), (begun, "isn't evaluated"), (2, "rolled out already")):
        with pytest.raises(TreeError, match=sentence):
            grown.search.rolled_out(node, line(1.0))
    assert fold(grown.journal.events) == grown.tree


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 1000),
    value=st.sampled_from(["max", "mean"]),
    selection=st.sampled_from(["puct", "greedy"]),
    mixing=st.sampled_from(["none", "rave"]),
    kernels=st.sampled_from([8, 1000]),
)
def test_replay_equals_live_and_walks_alike(
    *, seed: int, value: str, selection: str, mixing: str, kernels: int
) -> None:
    policy = Policy(strategy="mcts", rollout="sampled", value=value, selection=selection, mixing=mixing)
    chaos = Chaos(random.Random(seed), policy, 4, kernels)  # noqa: S311
    for _ in range(50):
        if not chaos.step():
            break
        replayed = fold(chaos.journal.events)
        assert replayed == chaos.search.tree
        assert TreeSearch(replayed, chaos.journal, chaos.blobs).ask() == chaos.search.ask()


def test_a_journal_on_disk_gives_rollouts_back_and_older_programs_refuse_it(tmp_path: Path) -> None:
    grown = two_children()
    grown.grow(2, -1.0, outcome=Outcome.BUILD_ERROR)
    grown.search.rolled_out(2, line(0.5, 1.0))
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        for event in grown.journal.events:
            journal.append(event)
    assert read_tree(path).rollouts == grown.tree.rollouts == {2: pytest.approx(math.e)}
    assert json.loads(path.read_text().splitlines()[0])["version"] == SCHEMA_VERSION >= 4
    (found,) = (event for event in grown.journal.events if isinstance(event, RolledOut))
    assert [step.edit for step in found.steps] == ["edit 0", "edit 1"]
