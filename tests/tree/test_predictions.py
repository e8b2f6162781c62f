"""Predictions: what they do to the order of edits and to the choice among nodes, and how they are kept."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mctskernel.tree.events import PredictionRecord
from mctskernel.tree.export import to_json
from mctskernel.tree.fold import fold
from mctskernel.tree.journal import SCHEMA_VERSION, Journal, read_tree
from mctskernel.tree.legality import TreeError
from mctskernel.tree.strategies.strategy import Propose, Step


def predicted(seconds: float, *, gain: float = 0.0, sigma: float = 0.05) -> PredictionRecord:
    return PredictionRecord(seconds, {"DRAM": seconds}, gain or 10.0 / seconds, sigma)


def begun(tell: Any, *sources: str, priors: tuple[float, ...] = (), **policy: Any) -> Any:
    """A search whose root has the given edits. Nothing dissents unless the policy says so."""
    story = tell(**{"order": "predicted", "dissent": 0.0, **policy})
    story.evaluate(0, 1.0)
    story.propose(*sources, priors=priors or tuple(float(len(sources) - i) for i in range(len(sources))))
    return story


def test_the_fastest_prediction_comes_first(tell: Any) -> None:
    story = begun(tell, "a", "b", "c")
    for edit, seconds in enumerate((9.0, 7.0, 5.0)):
        story.search.predicted(0, edit, predicted(seconds))
    assert story.next_try().number == 2


def test_equals_keep_the_order_of_their_priors_and_nothing_else_does(tell: Any) -> None:
    story = begun(tell, "a", "b", "c", "d")
    story.search.predicted(0, 0, predicted(9.0))
    story.search.predicted(0, 1, predicted(5.1))
    story.search.predicted(0, 3, predicted(5.1))
    assert story.next_try().number == 1
    story.search.predicted(0, 2, predicted(5.0))
    assert story.next_try().number == 2, "a difference within the uncertainty is still the best guess"


def test_an_edit_without_a_prediction_counts_as_no_change(tell: Any) -> None:
    story = begun(tell, "a", "b", "c", "d")
    story.search.predicted(0, 0, predicted(9.0, gain=0.7))
    assert story.next_try().number == 1, "nobody has looked at it, and the other loses"
    story.search.predicted(0, 1, PredictionRecord())
    assert story.next_try().number == 1, "the surrogate has no opinion"
    story.search.predicted(0, 3, predicted(6.0, gain=1.04))
    assert story.next_try().number == 1, "a gain within the uncertainty is none"
    story.search.predicted(0, 2, predicted(5.0, gain=1.3))
    assert story.next_try().number == 2


def test_without_predictions_the_prior_decides(tell: Any) -> None:
    assert begun(tell, "a", "b", "c", priors=(1.0, 3.0, 2.0), dissent=1.0).next_try().number == 1


def test_predictions_mean_nothing_to_the_other_orders(tell: Any) -> None:
    story = begun(tell, "a", "b", order="prior", dissent=1.0)
    story.search.predicted(0, 0, predicted(9.0))
    story.search.predicted(0, 1, predicted(5.0))
    assert story.next_try().number == 0


def test_one_in_five_goes_to_what_the_predictions_disfavour(tell: Any) -> None:
    names = [f"k{i}" for i in range(20)]
    story = begun(tell, *names, widening="unlimited", dissent=0.2)
    for edit in range(20):
        # What the prior likes best is predicted to be the slowest.
        story.search.predicted(0, edit, predicted(30.0 - edit))
    tried = []
    for _ in range(15):
        tried.append(story.next_try().number)
        story.try_next(0.5)
    disfavoured = [
        node + 1 for node, edit in enumerate(tried) if edit == min(set(range(20)) - {*tried[:node]})
    ]
    assert disfavoured == [4, 9, 14]
    assert [edit for node, edit in enumerate(tried) if node + 1 not in disfavoured] == list(range(19, 7, -1))


def two_nodes(tell: Any, **policy: Any) -> Any:
    """A root with edits 1 to 3 left, and a child twice as fast, with edits of its own, that the policy prefers."""
    story = begun(tell, "child", "a", "b", "c", widening="fixed", widening_factor=3.0, **policy)
    story.try_next(2.0)
    return story


def test_the_most_promising_of_several_nodes_edits_is_taken(tell: Any) -> None:
    story = two_nodes(tell, lookahead=4)
    assert story.propose("d", "e") == 1
    story.search.predicted(0, 1, predicted(9.0, gain=1.2))
    story.search.predicted(1, 0, predicted(4.0, gain=1.1))
    assert story.next_try().path == (0, 1), "twice 1.1 is more than 1.2"
    story.search.predicted(0, 2, predicted(2.0, gain=5.0))
    assert (story.next_try().path, story.next_try().number) == ((0,), 2)


def test_without_lookahead_the_policy_chooses_the_node(tell: Any) -> None:
    story = two_nodes(tell)
    story.search.predicted(0, 1, predicted(9.0, gain=0.2))
    assert (story.next_try().path, story.next_try().number) == ((0,), 2)
    assert story.next_try().path == (0,)


@pytest.mark.parametrize(("gain", "taken"), [(2.0, (0,)), (1.95, (0, 1)), (2.05, (0,))])
def test_equals_among_nodes_go_to_the_one_that_the_policy_prefers(
    tell: Any, gain: float, taken: tuple[int, ...]
) -> None:
    story = two_nodes(tell, lookahead=4)
    story.propose("d")
    story.search.predicted(0, 1, predicted(5.0, gain=gain, sigma=0.1))
    story.search.predicted(0, 2, PredictionRecord())
    story.search.predicted(1, 0, predicted(5.0, gain=1.0, sigma=0.1))
    assert story.next_try().path == taken


@pytest.mark.parametrize(("gain_elsewhere", "taken"), [(1.0, (0,)), (0.5, (0, 1))])
def test_what_is_predicted_to_lose_stands_back_but_is_not_lost(
    tell: Any, gain_elsewhere: float, taken: tuple[int, ...]
) -> None:
    story = two_nodes(tell, lookahead=3)
    story.propose("d")
    for edit in (1, 2, 3):
        story.search.predicted(0, edit, predicted(8.0, gain=gain_elsewhere))
    story.search.predicted(1, 0, predicted(8.0, gain=0.6))
    # The child's edit would still be the faster one, yet it is a step back.
    assert story.next_try().path == taken


def test_a_prediction_reaches_the_node_that_its_edit_made(tell: Any) -> None:
    story = begun(tell, "a", "b")
    story.search.predicted(0, 0, predicted(5.0))
    assert story.try_next(2.0) == 1
    assert story.tree.nodes[1].prediction == predicted(5.0)
    assert story.try_next(2.0) == 2
    assert story.tree.nodes[2].prediction is None
    story.search.predicted(0, 1, predicted(6.0))
    assert story.tree.nodes[2].prediction == predicted(6.0), "late, and still evidence"


def test_what_is_a_tie_and_what_is_worse() -> None:
    within, beyond = math.exp(0.04), math.exp(0.06)
    assert predicted(1.0, gain=within).is_tie
    assert predicted(1.0, gain=1 / within).is_tie
    assert not predicted(1.0, gain=beyond).is_tie
    assert predicted(1.0, gain=1 / beyond).is_worse
    assert not predicted(1.0, gain=beyond).is_worse
    assert not PredictionRecord().is_tie
    assert not PredictionRecord().is_worse


@pytest.mark.parametrize(
    ("node", "edit", "sentence"),
    [
        (7, None, "no node 7"),
        (0, 2, "node 0 has no edit 2"),
        (0, -1, "node 0 has no edit -1"),
        (0, 0, "predicted already"),
    ],
)
def test_a_prediction_that_cannot_follow_is_refused(
    tell: Any, node: int, edit: int | None, sentence: str
) -> None:
    story = begun(tell, "a", "b")
    story.search.predicted(0, 0, predicted(5.0))
    with pytest.raises(TreeError, match=sentence):
        story.search.predicted(node, edit, predicted(5.0))
    assert story.replayed() == story.tree


@settings(max_examples=25, deadline=None)
@given(
    gains=st.lists(st.floats(0.1, 10.0), min_size=1, max_size=12),
    rewards=st.lists(st.floats(0.1, 5.0), min_size=12, max_size=12),
    lookahead=st.integers(1, 5),
    dissent=st.floats(0, 1),
    answered=st.sets(st.integers(0, 11)),
)
def test_asking_changes_nothing_and_replay_chooses_alike(
    tell: Any,
    *,
    gains: list[float],
    rewards: list[float],
    lookahead: int,
    dissent: float,
    answered: set[int],
) -> None:
    story = begun(tell, *(f"k{i}" for i in range(len(gains))), lookahead=lookahead, dissent=dissent)
    for step, reward in zip(range(len(gains)), rewards, strict=False):
        for edit in answered - story.tree.nodes[0].predictions.keys():
            if edit < len(gains):
                story.search.predicted(0, edit, predicted(1.0, gain=gains[edit]))
        while isinstance(story.search.ask(), Propose):
            story.propose(*(f"{story.search.ask().node}-{i}" for i in range(2)))
        before = to_json(story.tree), list(story.tree.node_statistics.in_flight.view)
        first, steps = story.next_try(), story.search.outlook(lookahead)
        assert (to_json(story.tree), list(story.tree.node_statistics.in_flight.view)) == before
        tries = [(each.node, each.edit) for each in steps if isinstance(each, Step)]
        assert len(set(tries)) == len(tries)
        assert story.next_try() == first
        assert story.replayed() == story.tree, step
        story.try_next(reward)


def test_a_journal_of_the_first_version_is_read_and_goes_on_as_the_present_one(
    tell: Any, tmp_path: Path
) -> None:
    story = begun(tell, "a")
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        for event in story.journal.events:
            journal.append(event)
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    started = json.loads(lines[1])
    del started["policy"]["lookahead"], started["policy"]["dissent"]
    old = ['{"schema": "mctskernel.journal", "version": 1}\n', json.dumps(started) + "\n", *lines[2:]]
    path.write_text("".join(old))
    assert read_tree(path).nodes == fold(story.journal.events).nodes
    assert path.read_text() == "".join(old), "reading changes nothing"
    with Journal(path) as journal:
        story.search.predicted(0, 0, predicted(5.0))
        journal.append(story.journal.events[-1])
    header = json.loads(path.read_text().splitlines()[0])
    assert header == {"schema": "mctskernel.journal", "version": SCHEMA_VERSION}
    assert read_tree(path).nodes == story.tree.nodes
