"""A search guided by the model of edits, on trees whose best next edit is plain."""

from __future__ import annotations

import itertools
import math

import pytest

from mctskernel.core.evaluation import Outcome
from mctskernel.tree.edit_model.model import epoch
from mctskernel.tree.search import Try
from mctskernel.tree.strategies.strategy import Propose
from tests.tree.by_hand import Grown, edit

WORTH = {"tile": (1.0, 2.0, 4.0), "warps": (1.0, 3.0, 0.5)}
"""What each level multiplies the speed by."""


def speed(**levels: int) -> float:
    return math.prod(WORTH[name][level] for name, level in levels.items())


def grown(**policy: object) -> Grown:
    return Grown(reward=1.0, strategy="edit-model", **policy)


def test_what_edits_did_apart_is_expected_of_them_together() -> None:
    tree = grown()
    steps = [edit(**{name: float(level)}) for name in WORTH for level in range(3)]
    tree.offer(0, *steps)
    for number, (name, level) in enumerate((name, level) for name in WORTH for level in range(3)):
        tree.make(0, number, speed(**{name: level}))
    # The six are known; what may be tried are pairs of them, all of one node.
    pairs = [(tile, warps) for tile in range(3) for warps in range(3)]
    tree.offer(0, *(edit(tile=float(tile), warps=float(warps)) for tile, warps in pairs))
    request = tree.search.ask()
    assert isinstance(request, Try)
    assert {factor.name: factor.level for factor in request.edit.factors} == {"tile": 2.0, "warps": 1.0}


def test_an_edit_that_failed_elsewhere_comes_late() -> None:
    tree = grown()
    tree.offer(0, edit(a=1.0), edit(b=1.0))
    good = tree.make(0, 0, 2.0)
    tree.make(0, 1, -1.5, Outcome.BUILD_ERROR)
    tree.offer(0, edit(c=1.0), edit(d=1.0), edit(e=1.0))
    for number, gain in ((2, 2.0), (3, 1.0), (4, 1.0)):
        tree.make(0, number, gain)
    tree.offer(good, edit(b=1.0), edit(c=1.0))
    request = tree.search.ask()
    assert isinstance(request, Try)
    assert request.path == (0, good)
    assert request.edit.factors[0].name == "c"


def test_of_two_ways_to_the_same_decisions_the_one_from_the_faster_kernel_is_taken() -> None:
    tree = grown()
    tree.offer(0, edit(a=1.0), edit(b=1.0))
    slow, fast = tree.make(0, 0, 1.1), tree.make(0, 1, 1.5)
    tree.offer(slow, edit(b=1.0))
    tree.offer(fast, edit(a=1.0))
    assert tree.path() == (0, fast)


def test_what_would_decide_the_same_as_a_node_is_left_for_the_end() -> None:
    tree = grown()
    tree.offer(0, edit(a=1.0), edit(b=1.0), edit(z=1.0))
    first, second, slow = (tree.make(0, number, gain) for number, gain in enumerate((3.0, 1.2, 0.001)))
    tree.offer(first, edit(b=1.0))
    both = tree.make(first, 0, 3.1)
    tree.offer(second, edit(a=1.0))
    tree.offer(slow, edit(a=1.0))
    for node in (0, first, both):
        tree.offer(node)
    assert tree.path() == (0, slow)
    tree.make(slow, 0, 0.001)
    tree.offer(len(tree.tree.nodes) - 1)
    tree.offer(slow)
    assert tree.path() == (0, second)


def test_a_reply_that_is_awaited_holds_up_nobody() -> None:
    tree = grown()
    request = tree.search.ask()
    assert request == Propose((0,))
    tree.offer(0, edit(a=1.0), edit(b=1.0))
    assert isinstance(tree.search.ask(), Try)


def test_proposers_are_believed_while_little_is_known() -> None:
    tree = grown()
    tree.offer(0, edit(a=1.0, prior=0.1), edit(b=1.0, prior=1.0))
    request = tree.search.ask()
    assert isinstance(request, Try)
    assert request.edit.factors[0].name == "b"


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
