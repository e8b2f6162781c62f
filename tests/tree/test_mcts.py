"""Monte Carlo tree search against values worked by hand, with the edit model and without."""

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mctskernel.core.evaluation import Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.core.user_errors import MisuseError
from mctskernel.tree.edit_model.score import Prospects, expected_improvement, log_excess
from mctskernel.tree.journal import MemoryJournal
from mctskernel.tree.node import Tree
from mctskernel.tree.search import TreeSearch
from mctskernel.tree.strategies.strategy import Generators, Propose, Step
from tests.tree.grown import Grown, edit


def test_expected_improvement_by_hand() -> None:
    found = Prospects(np.array([1.0, 3.0, 1.0]), np.array([1.0, 1e-9, 2.0]), 1.0, 1.0)
    density = 1 / math.sqrt(2 * math.pi)
    assert np.exp(expected_improvement(found)) == pytest.approx([density, 2.0, 2 * density], rel=1e-5)


def test_expected_improvement_orders_what_is_hopeless_too() -> None:
    found = log_excess(np.linspace(-60, 20, 8001))
    assert (np.diff(found) > 0).all()
    # log(phi(20) / 400 * (1 - 3 / 400 + 15 / 400^2 - 105 / 400^3)), at -20.
    assert found[4000] == pytest.approx(-206.917838, abs=1e-5)


SPEEDS = {"tile": (1.0, 2.0, 4.0), "warps": (1.0, 3.0, 0.5)}  # what each level multiplies the speed by


def speed(**levels: int) -> float:
    return math.prod(SPEEDS[name][level] for name, level in levels.items())


def modelled(**choices: Any) -> Grown:
    return Grown(reward=1.0, strategy="mcts", **choices)


def test_what_edits_did_apart_is_expected_of_them_together() -> None:
    tree = modelled()
    steps = [edit(**{name: float(level)}) for name in SPEEDS for level in range(3)]
    tree.offer(0, *steps)
    for number, (name, level) in enumerate((name, level) for name in SPEEDS for level in range(3)):
        tree.make(0, number, speed(**{name: level}))
    # The six are known; what may be tried are pairs of them, all of one node.
    pairs = [(tile, warps) for tile in range(3) for warps in range(3)]
    tree.offer(0, *(edit(tile=float(tile), warps=float(warps)) for tile, warps in pairs))
    _, wanted = tree.next_edit()
    assert {factor.name: factor.level for factor in wanted.factors} == {"tile": 2.0, "warps": 1.0}


def test_an_edit_that_failed_elsewhere_comes_late() -> None:
    tree = modelled()
    tree.offer(0, edit(a=1.0), edit(b=1.0))
    good = tree.make(0, 0, 2.0)
    tree.make(0, 1, -1.5, Outcome.BUILD_ERROR)
    tree.offer(0, edit(c=1.0), edit(d=1.0), edit(e=1.0))
    for number, gain in ((2, 2.0), (3, 1.0), (4, 1.0)):
        tree.make(0, number, gain)
    tree.offer(good, edit(b=1.0), edit(c=1.0))
    step, wanted = tree.next_edit()
    assert step.node == good
    assert wanted.factors[0].name == "c"


def test_of_two_ways_to_the_same_decisions_the_one_from_the_faster_kernel_is_taken() -> None:
    tree = modelled()
    tree.offer(0, edit(a=1.0), edit(b=1.0))
    slow, fast = tree.make(0, 0, 1.1), tree.make(0, 1, 1.5)
    tree.offer(slow, edit(b=1.0))
    tree.offer(fast, edit(a=1.0))
    assert tree.next_edit()[0].node == fast


@pytest.mark.parametrize("duplicate", [False, True])
def test_what_would_decide_the_same_as_a_node_or_a_duplicate_is_left_for_the_end(duplicate: bool) -> None:
    tree = modelled()
    tree.offer(0, edit(a=1.0), edit(b=1.0), edit(z=1.0))
    first, second, slow = (tree.make(0, number, gain) for number, gain in enumerate((3.0, 1.2, 0.001)))
    tree.offer(first, edit(b=1.0))
    if duplicate:
        assert tree.search.submit(Step(first, 0), Kernel("root")) is None
    else:
        tree.offer(tree.make(first, 0, 3.1))
    tree.offer(second, edit(a=1.0))
    tree.offer(slow, edit(a=1.0))
    tree.offer(0)
    tree.offer(first)
    assert tree.next_edit()[0].node == slow
    tree.make(slow, 0, 0.001)
    tree.offer(len(tree.tree.nodes) - 1)
    tree.offer(slow)
    assert tree.next_edit()[0].node == second


def test_a_reply_that_is_awaited_holds_up_nobody() -> None:
    tree = modelled()
    request = tree.search.next_action()
    assert request == Propose(0)
    tree.offer(0, edit(a=1.0), edit(b=1.0))
    assert isinstance(tree.search.next_action(), Step)


def test_proposers_are_believed_while_little_is_known() -> None:
    tree = modelled()
    tree.offer(0, edit(a=1.0, prior=0.1), edit(b=1.0, prior=1.0))
    _, wanted = tree.next_edit()
    assert wanted.factors[0].name == "b"


def bandit(**choices: Any) -> Grown:
    """A root (reward 0) with three children: rewards 0.2, 1.0, 0.4, priors 3, 1, 1; no more are allowed."""
    grown = Grown(**{"widening_factor": 3, "widening_exponent": 0.0} | choices)
    grown.propose("a", "b", "c", priors=(3.0, 1.0, 1.0))
    for reward in (0.2, 1.0, 0.4):
        grown.try_next(reward)
    return grown


def test_selection_follows_the_greatest_score_and_backup_updates_the_way_back() -> None:
    grown = bandit(exploration=0.0)
    assert grown.propose("ba", "bb") == 2
    grown.try_next(3.0)
    root, b = grown.node(0), grown.node(2)
    assert (root.visits, b.visits, b.reward_sum, b.reward_max) == (5, 2, 4.0, 3.0)
    assert (root.reward_sum, root.reward_max) == (pytest.approx(4.6), 3.0)


@pytest.mark.parametrize(("value", "chosen"), [("max", 1), ("mean", 2)])
def test_a_node_is_worth_the_greatest_reward_below_it_or_the_mean(value: str, chosen: int) -> None:
    grown = Grown(exploration=0.0, value=value, widening_factor=2, widening_exponent=0.0)
    first, second = grown.grow(0, 0.0, 1.0)
    grown.grow(first, 1.5, -9.0)
    for node in (first, second):
        grown.offer(node)  # the proposer has nothing more
    grown.offer(3)
    grown.offer_sources(second, "x")
    grown.offer_sources(4, "y")
    assert grown.next_edit()[0].node == {1: 4, 2: second}[chosen]


def test_widening_admits_children_as_visits_grow() -> None:
    grown = Grown(widening_factor=1.0, widening_exponent=0.5)
    grown.propose(*"abcdefgh")
    children = []
    for number in range(12):
        if isinstance(action := grown.search.next_action(), Propose):
            grown.offer_sources(action.node, *(f"{action.node} {number} {i}" for i in range(4)))
        grown.try_next(0.0)
        root = grown.node(0)
        children.append((root.visits, len(root.children)))
    assert all(count <= math.ceil(math.sqrt(visits)) for visits, count in children)
    assert children[-1][1] >= 3


def test_pending_evaluations_count_for_widening() -> None:
    grown = Grown(widening_factor=1.0, widening_exponent=1.0)
    grown.propose("a", "b", "c")
    assert [grown.submit()[0].title for _ in range(3)] == ["a", "b", "c"]


def test_a_node_whose_proposer_was_asked_is_passed_over_until_the_search_resumes() -> None:
    grown = bandit(exploration=0.0)
    assert grown.search.next_action() == Propose(2)
    grown.search.request(2)
    assert grown.search.next_action() == Propose(3)
    grown.search.resume()
    assert grown.search.next_action() == Propose(2)
    assert grown.node(0).in_flight == 0
    assert grown.replayed() == grown.tree


def test_exhausted_subtrees_are_passed_over() -> None:
    grown = bandit(exploration=0.0)
    assert [grown.propose() for _ in range(4)] == [2, 3, 1, 0]
    assert grown.tree.exhausted


def test_plain_uct_tries_every_edit_before_it_goes_on_below() -> None:
    grown = Grown(strategy="uct", exploration=1.4)
    grown.propose(*"abcdef")
    made = [grown.submit()[1] for _ in range(6)]
    assert [grown.node(each or 0).parent for each in made] == [0] * 6
    for node in range(1, 7):
        grown.evaluate(node, float(node))
    assert grown.propose() == 0
    assert grown.search.next_action() == Propose(6)


PAGE = Path(__file__).parents[2] / "docs" / "own_parts.md"


def test_a_strategy_of_ones_own_searches_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = PAGE.read_text("utf-8").split("```python\n")[1].partition("```")[0]
    (tmp_path / "mine.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    grown = Grown(strategy="mine:Mine", width=1)
    grown.propose("a", "b")
    grown.try_next(1.0)
    again = TreeSearch(grown.replayed(), MemoryJournal(), grown.blobs, clock=lambda: 0.0)
    assert again.next_action() == grown.search.next_action()


class Broken:
    """A strategy that can't go on."""

    def step(self, tree: Tree, rng: Generators) -> None:
        raise ZeroDivisionError


def test_a_strategy_that_raises_is_named_with_the_line() -> None:
    grown = Grown(strategy=f"{__name__}:Broken")
    with pytest.raises(MisuseError, match=r"Broken' raised ZeroDivisionError.*test_mcts\.py:\d+"):
        grown.search.next_action()
