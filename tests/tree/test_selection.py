"""Selection, widening, backup and normalisation, against values worked by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from mctskernel.core.edit import Category, Edit, WholeSource
from mctskernel.core.evaluation import Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import Proposals
from mctskernel.tree.choices import CHOICES, check_names
from mctskernel.tree.normalisation import min_max
from mctskernel.tree.policy import Policy, PolicyError
from mctskernel.tree.scores import Children, puct, uct
from mctskernel.tree.search import Try
from mctskernel.tree.selection import select
from mctskernel.tree.strategies.strategy import Propose
from mctskernel.tree.widening import fixed, progressive, unlimited

CHILDREN = Children(
    value=np.array([0.5, 0.8, 0.2]),
    visits=np.array([4.0, 10.0, 1.0]),
    prior=np.array([0.2, 0.3, 0.5]),
    parent_visits=16.0,
)


def test_uct_by_hand() -> None:
    # ln 16 = 2.772589; sqrt(ln 16 / n) = 0.832555, 0.526554, 1.665109
    expected = [0.5 + 0.5 * 0.832555, 0.8 + 0.5 * 0.526554, 0.2 + 0.5 * 1.665109]
    assert uct(CHILDREN, Policy(exploration=0.5)) == pytest.approx(expected, abs=1e-6)


def test_puct_by_hand() -> None:
    # sqrt 16 = 4; prior * 4 / (1 + n) = 0.16, 0.109091, 1.0
    expected = [0.5 + 2 * 0.16, 0.8 + 2 * 0.109091, 0.2 + 2 * 1.0]
    assert puct(CHILDREN, Policy(exploration=2.0)) == pytest.approx(expected, abs=1e-6)


def bandit(tell: Any, **policy: Any) -> Any:
    """A root (reward 0) with three children: rewards 0.2, 1.0, 0.4, priors 3, 1, 1."""
    story = tell(widening="fixed", widening_factor=3, **policy)
    story.evaluate(0, 0.0)
    story.propose("a", "b", "c", priors=(3.0, 1.0, 1.0))
    for reward in (0.2, 1.0, 0.4):
        story.try_next(reward)
    return story


def grow_by_hand(story: Any, below: tuple[int, ...], rewards: dict[str, float | None]) -> None:
    """Offers edits of the last node of a path and tries them, wherever selection would lead.

    Those without a reward are submitted if their kernel is known, else left to wait. The kernel "dead" fails.
    """
    path = (0, *below)
    if story.tree.nodes[0].evaluation is None:
        story.evaluate(0, 0.0)
    edits = tuple(Edit(Category.TUNING, source, WholeSource(source)) for source in rewards)
    story.search.proposed(Propose(path), Proposals(edits))
    for number, (source, reward) in enumerate(rewards.items()):
        kernel, attempt = Kernel(source), Try(path, number, edits[number])
        if reward is not None:
            outcome = Outcome.TIMEOUT if source == "dead" else Outcome.OK
            story.evaluate(story.search.submit(attempt, kernel), reward, outcome)
        elif kernel.identity in story.tree.by_identity:
            story.search.submit(attempt, kernel)


def grow(story: Any, rewards: list[float]) -> list[int]:
    """For each reward, proposes one edit where selection leads and tells the reward. Returns where it led."""
    visited = []
    for number, reward in enumerate(rewards):
        visited.append(story.propose(f"grown {number}"))
        story.try_next(reward)
    return visited


def test_golden_tree_uct_mean(tell: Any) -> None:
    """c = 1, mean, rewards from 0 to 1; scores beside each step are value + sqrt(ln N / n)."""
    story = bandit(tell, selection="uct", exploration=1.0, value="mean")
    # N=4, sqrt(ln 4)=1.177: a 1.377, b 2.177, c 1.577 -> b, gets 0.0
    # N=5, sqrt(ln 5)=1.269: a 1.469, b (1+0)/2 + 0.897 = 1.397, c 1.669 -> c, gets 0.1
    # N=6, sqrt(ln 6)=1.339: a 1.539, b 1.447, c 0.25 + 0.947 = 1.197 -> a, gets 0.1
    assert grow(story, [0.0, 0.1, 0.1]) == [2, 3, 1]
    # N=7, sqrt(ln 7 / 2)=0.986: a 1.136, b 1.486, c 1.236 -> b, with 1 child of 3: it is expanded again.
    assert isinstance(story.search.ask(), Propose)
    assert story.search.ask().path == (0, 2)
    visits = story.tree.node_statistics.visits.view.tolist()
    assert visits == [7, 2, 2, 2, 1, 1, 1]
    assert story.tree.node_statistics.reward_sum.view.tolist() == pytest.approx(
        [1.8, 0.3, 1.0, 0.5, 0.0, 0.1, 0.1]
    )


def test_golden_tree_puct_max(tell: Any) -> None:
    """c = 1, maximum; scores beside each step are value + prior * sqrt N / (1 + n), priors 0.6, 0.2, 0.2."""
    story = bandit(tell, selection="puct", exploration=1.0, value="max")
    # N=4: a 0.2 + 0.6 * 2 / 2 = 0.8, b 1.0 + 0.2 = 1.2, c 0.6 -> b, gets 0.0
    # N=5: a 0.2 + 0.6 * 2.236 / 2 = 0.871, b 1 + 0.2 * 2.236 / 3 = 1.149 -> b still: its maximum stays 1
    # N=6: a 0.935, b 1 + 0.2 * 2.449 / 4 = 1.122 -> b
    assert grow(story, [0.0, 0.0, 0.0]) == [2, 2, 2]
    assert story.tree.node_statistics.reward_max.view[:3].tolist() == [1.0, 0.2, 1.0]


def test_mean_and_maximum_disagree_where_one_child_is_great_among_bad_ones(tell: Any) -> None:
    first_choice = {}
    for value in ("mean", "max"):
        story = bandit(tell, selection="greedy", value=value)
        grow(story, [0.0, 0.0])
        first_choice[value] = select(story.tree, story.tree.policy).path[1]
    # b's mean falls to (1 + 0) / 2 = 0.5, then to 1/3, below c's 0.4.
    assert first_choice == {"mean": 3, "max": 2}


def test_progressive_widening_counts() -> None:
    policy = Policy(widening_factor=1.5, widening_exponent=0.5)
    assert [progressive(n, policy) for n in (1, 2, 4, 9, 100)] == [2, 3, 3, 5, 15]
    assert fixed(1000, policy) == 1.5
    assert unlimited(1, policy) == math.inf


def test_widening_decides_between_a_new_child_and_going_below(tell: Any) -> None:
    story = tell(widening="progressive", widening_factor=1.0, widening_exponent=0.5)
    story.evaluate(0, 0.0)
    story.propose("a", "b", "c")
    story.try_next(0.5)  # 1 visit admits 1 child
    assert select(story.tree, story.tree.policy).path == (0,)  # 2 visits admit ceil(1.41) = 2
    story.try_next(0.4)
    assert select(story.tree, story.tree.policy).path != (0,)  # 3 visits admit no third
    story.propose("d")
    story.try_next(0.1)
    assert len(story.tree.children_of(0)) == 2


def test_unlimited_widening_tries_every_edit_of_a_node_first(tell: Any) -> None:
    story = tell(widening="unlimited")
    story.evaluate(0, 0.0)
    story.propose(*"abcdef")
    for _ in range(6):
        assert story.next_try().node == 0
        story.try_next(1.0)
    assert story.propose() == 0  # asked once more: no reply with more
    assert story.search.ask().node != 0


def test_min_max_normalisation() -> None:
    assert min_max(np.array([-3.0, 0.0, 1.0]), -3.0, 1.0).tolist() == [0.0, 0.75, 1.0]
    assert min_max(np.array([2.0, 2.0]), 2.0, 2.0).tolist() == [0.5, 0.5]


def test_choice_does_not_depend_on_the_scale_of_rewards(tell: Any) -> None:
    paths = []
    for scale in (1.0, 1e-6, 1e6):
        story = tell()
        story.evaluate(0, 0.0)
        story.propose("a", "b", "c", "d")
        path = []
        for reward in (0.1, 0.7, -0.3, 0.2, 0.9, 0.6, 0.1, 0.8):
            while isinstance(request := story.search.ask(), Propose):
                story.propose(*(f"{request.node} {i}" for i in range(3)))
            path.append(request.path)
            story.try_next(reward * scale)
        paths.append(path)
    assert paths[0] == paths[1] == paths[2]


def test_edits_come_by_prior_and_ties_by_age(tell: Any) -> None:
    story = tell(widening="unlimited")
    story.evaluate(0, 0.0)
    story.propose("a", "b", "c", "d", priors=(1.0, 3.0, float("nan"), 3.0))
    assert [story.next_try().edit.title, story.try_next(0.0)] == ["b", 1]
    assert [story.next_try().edit.title, story.try_next(0.0)] == ["d", 2]
    assert [story.next_try().edit.title, story.try_next(0.0)] == ["a", 3]
    assert story.next_try().edit.title == "c"


def test_arrival_order_ignores_priors(tell: Any) -> None:
    story = tell(order="arrival")
    story.evaluate(0, 0.0)
    story.propose("a", "b", priors=(1.0, 3.0))
    assert story.next_try().edit.title == "a"


def test_sampled_order_follows_priors_and_repeats(tell: Any) -> None:
    def titles() -> list[str]:
        story = tell(order="sampled", widening="unlimited")
        story.evaluate(0, 0.0)
        story.propose(*(f"{i}" for i in range(40)), priors=[100.0] * 20 + [0.1] * 20)
        drawn = []
        for _ in range(20):
            drawn.append(story.next_try().edit.title)
            story.try_next(0.0)
        return drawn

    drawn = titles()
    assert drawn == titles()
    assert drawn != sorted(drawn, key=int)
    assert sum(int(title) < 20 for title in drawn) >= 18


def test_virtual_loss_spreads_evaluations_in_flight(tell: Any) -> None:
    def next_node(virtual_loss: float) -> int:
        story = bandit(tell, selection="uct", exploration=0.1, virtual_loss=virtual_loss)
        assert story.propose("x", "y") == 2
        story.submit()
        return int(select(story.tree, story.tree.policy).path[1])

    assert next_node(0.0) == 2
    assert next_node(5.0) == 3


def test_a_node_in_flight_is_waited_for(tell: Any) -> None:
    story = tell()
    assert story.must_wait()
    story.evaluate(0, 0.0)
    story.propose("a", "b")
    story.submit()
    story.submit()
    assert story.propose() == 0  # nothing more to offer
    assert story.must_wait()
    story.evaluate(1, 1.0)
    assert story.propose("c") == 1


def test_workers_are_kept_busy_beyond_the_widening_limit(tell: Any) -> None:
    story = tell(widening_factor=1.0)
    story.evaluate(0, 0.0)
    story.propose(*"abcdefgh")
    assert [story.submit()[1] for _ in range(8)] == list(range(1, 9))


def test_a_node_whose_proposer_works_is_passed_over(tell: Any) -> None:
    story = bandit(tell, selection="greedy")
    request = story.search.ask()
    assert request.path == (0, 2)
    story.search.asked(request)
    assert story.tree.node_statistics.in_flight[2] == 1
    assert story.search.ask().path == (0, 3)
    story.search.resume()
    assert story.search.ask() == request
    assert story.tree.node_statistics.in_flight[2] == 0
    assert story.replayed() == story.tree


def test_dead_ends_are_excluded(tell: Any) -> None:
    story = bandit(tell, selection="greedy")
    assert story.propose() == 2  # the best child has nothing to offer
    assert story.propose() == 3
    assert story.propose() == 1
    assert story.propose() == 0
    assert story.is_exhausted()
    assert story.tree.exhausted


@pytest.mark.parametrize(
    ("outcome", "depth", "expandable"),
    [
        (Outcome.BUILD_ERROR, 1, True),
        (Outcome.WRONG_RESULT, 1, True),
        (Outcome.BUILD_ERROR, 0, False),
        (Outcome.TIMEOUT, 3, False),
        (Outcome.REJECTED, 3, False),
    ],
)
def test_failures_count_as_visits_and_some_may_be_repaired(
    tell: Any, outcome: Outcome, depth: int, expandable: bool
) -> None:
    story = tell(repair_depth=depth)
    story.evaluate(0, 0.0)
    story.propose("a")
    story.try_next(-1.0, outcome)
    assert story.propose() == 0
    assert story.tree.node_statistics.visits[0] == 2
    assert story.tree.node_statistics.reward_sum[0] == -1.0
    assert isinstance(story.search.ask(), Propose) == expandable


def test_repair_ends_after_so_many_failures_in_a_row(tell: Any) -> None:
    story = tell(repair_depth=2, widening_factor=1, widening="fixed")
    story.evaluate(0, 0.0)
    for level in range(3):
        assert story.propose(f"broken {level}") == level
        story.try_next(-1.0, Outcome.BUILD_ERROR)
    assert [story.propose() for _ in range(3)] == [2, 1, 0]  # never node 3, which failed as the third
    assert story.is_exhausted()


def test_a_mended_kernel_starts_afresh(tell: Any) -> None:
    story = tell(repair_depth=1, widening_factor=1, widening="fixed")
    story.evaluate(0, 0.0)
    story.propose("broken")
    story.try_next(-1.0, Outcome.RACE)
    story.propose("mended")
    story.try_next(1.0)
    story.propose("broken again")
    story.try_next(-1.0, Outcome.RACE)
    assert story.propose("mended again") == 3


def test_a_quarantined_kernel_has_no_children(tell: Any) -> None:
    story = tell()
    story.evaluate(0, 0.0, quarantine="faster than the roofline")
    assert story.is_exhausted()


def test_a_known_kernel_becomes_an_edge_and_costs_nothing(tell: Any) -> None:
    story = bandit(tell, selection="greedy")
    story.propose("c")
    before = story.tree.node_statistics.visits.view.tolist()
    attempt, node = story.submit()
    assert (attempt.path, node) == ((0, 2), None)
    assert story.tree.node_statistics.visits.view.tolist() == before
    assert [(edge.parent, edge.child) for edge in story.tree.edges if edge.transposition] == [(2, 3)]


def test_selection_passes_through_a_transposition_and_backup_follows(tell: Any) -> None:
    story = bandit(tell, selection="greedy", value="max")
    story.propose("c", "bad")
    story.submit()
    assert story.try_next(0.0) == 4
    assert story.propose() == 2  # b has nothing more, but a bad child, and c by transposition
    assert story.search.ask().path == (0, 2, 3)
    story.propose("below c")
    story.try_next(2.0)
    statistics = story.tree.node_statistics
    assert statistics.reward_max.view.tolist() == [2.0, 0.2, 2.0, 2.0, 0.0, 2.0]
    assert statistics.visits.view.tolist() == [6, 1, 3, 2, 1, 1]
    assert story.tree.path_to(5) == [0, 2, 3, 5]
    assert story.tree.lineage(5) == [0, 3, 5]  # made by an edit of c, which is an edit of the root


def test_a_walk_that_corners_itself_backs_out(tell: Any) -> None:
    """Through a transposition the walk enters node 1, whose only ready descendant it came from."""
    story = tell(selection="greedy", widening="fixed", widening_factor=1)
    grow_by_hand(story, (), {"x": -1.0, "y": 1.0})
    grow_by_hand(story, (1,), {"d": 0.0})
    grow_by_hand(story, (1, 3), {"dead": 0.0, "x": None, "waits": None})
    story.search.proposed(Propose((0, 1)), Proposals(()))
    grow_by_hand(story, (2,), {"d": None, "worse": -2.0})
    story.search.proposed(Propose((0, 2)), Proposals(()))
    story.search.proposed(Propose((0,)), Proposals(()))
    edges = {(edge.parent, edge.child) for edge in story.tree.edges if edge.transposition}
    assert edges == {(2, 3), (3, 1)}
    assert story.next_try().path == (0, 2, 3)
    assert story.next_try().edit.title == "waits"


def test_an_edit_offered_again_is_dropped_and_patience_ends(tell: Any) -> None:
    story = tell(patience=2)
    story.evaluate(0, 0.0)
    story.propose("a")
    story.try_next(0.0, Outcome.TIMEOUT)
    assert story.propose("a") == 0
    assert story.propose("a", "a") == 0
    assert story.is_exhausted()
    assert len(story.tree.nodes[0].edits) == 1


def test_an_edit_that_makes_no_kernel_costs_nothing(tell: Any) -> None:
    story = tell()
    story.evaluate(0, 0.0)
    story.propose("a")
    story.search.refuse(story.next_try(), "The patch doesn't fit.")
    assert story.tree.node_statistics.visits[0] == 1
    assert story.is_exhausted()


@pytest.mark.parametrize(
    "wrong",
    [
        {"exploration": -1.0},
        {"exploration": math.nan},
        {"widening_factor": 0.0},
        {"repair_depth": -1},
        {"patience": 0},
    ],
)
def test_numbers_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(PolicyError, match=next(iter(wrong))):
        Policy(**wrong)


@pytest.mark.parametrize("field", CHOICES)
def test_unknown_names_are_refused_with_the_known_ones(field: str) -> None:
    with pytest.raises(
        PolicyError, match=f"{field} is 'nonsense'; it must be one of {next(iter(CHOICES[field]))}"
    ):
        check_names(Policy(**{field: "nonsense"}))


@pytest.mark.parametrize(("field", "name"), [(field, name) for field in CHOICES for name in CHOICES[field]])
def test_every_choice_runs(tell: Any, field: str, name: str) -> None:
    story = tell(**{field: name})
    story.evaluate(0, 0.0)
    for number in range(60):
        if isinstance(request := story.search.ask(), Propose):
            story.propose(*(f"{request.node} {number} {i}" for i in range(4)))
        else:
            story.try_next(number % 7 / 7)
    assert len(story.tree.nodes) > 20
    assert story.replayed() == story.tree
