"""Whatever comes back in whatever order, the tree stays sound and its journal gives it back."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mctskernel.core.edit import Block, Category, Edit, Patch, WholeSource
from mctskernel.core.evaluation import REPAIRABLE, Check, Evaluation, Outcome, Score, Source
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import Proposals
from mctskernel.tree.blobs import MemoryBlobs
from mctskernel.tree.choices import CHOICES
from mctskernel.tree.events import (
    Duplicated,
    Evaluated,
    PredictionRecord,
    Proposed,
    Refused,
    RolloutStep,
    Started,
)
from mctskernel.tree.fold import apply, fold
from mctskernel.tree.journal import MemoryJournal
from mctskernel.tree.legality import TreeError
from mctskernel.tree.node import Tree
from mctskernel.tree.policy import Policy
from mctskernel.tree.rollouts import rolls_out
from mctskernel.tree.search import Exhausted, TreeSearch, Try, Wait
from mctskernel.tree.strategies.strategy import Propose


def seeded(seed: int | str) -> random.Random:
    return random.Random(seed)  # noqa: S311


class Chaos:
    """A search with up to `workers` evaluations in flight, over few kernels, so that edits meet again."""

    def __init__(self, rng: random.Random, policy: Policy, workers: int, kernels: int) -> None:
        self.rng, self.workers, self.kernels = rng, workers, kernels
        self.journal, self.blobs = MemoryJournal(), MemoryBlobs()
        self.search = TreeSearch(Tree(), self.journal, self.blobs)
        self.search.start(Kernel("0"), policy, seed=3)
        self.in_flight = [0]
        self.replies: list[Propose] = []

    def step(self) -> bool:
        """One thing that may happen. False when the search is exhausted."""
        if (self.in_flight or self.replies) and self.rng.random() < 0.4:
            self.come_back()
            return True
        if self.rng.random() < 0.03:
            self.die_and_resume()
        if rolls_out(self.search.tree.policy) and self.rng.random() < 0.3:
            self.roll_out()
        before = len(self.journal.events)
        request = self.search.ask()
        assert request == self.search.ask()
        assert len(self.journal.events) == before
        match request:
            case Exhausted():
                assert not self.in_flight
                return False
            case Wait():
                self.come_back()
            case Propose() if self.rng.random() < 0.5 and len(self.replies) < self.workers:
                self.search.asked(request)
                self.replies.append(request)
            case Propose():
                self.reply(request)
            case Try() if self.rng.random() < 0.1:
                self.search.refuse(request, "The patch doesn't fit.")
            case Try() if len(self.in_flight) < self.workers:
                assert isinstance(request.edit.change, WholeSource)
                node = self.search.submit(request, Kernel(request.edit.change.source))
                self.in_flight += [] if node is None else [node]
        return True

    def come_back(self) -> None:
        waiting = len(self.in_flight) + len(self.replies)
        number = self.rng.randrange(waiting)
        if number < len(self.in_flight):
            outcome = self.rng.choice([Outcome.OK, Outcome.OK, Outcome.BUILD_ERROR, Outcome.TIMEOUT])
            reward = self.rng.uniform(-1, 2) if outcome is Outcome.OK else -1.0
            evaluation = Evaluation(outcome, Source.MODELLED, log="" if self.rng.random() < 0.5 else "a log")
            self.search.evaluated(self.in_flight.pop(number), evaluation, Score(reward, max(reward, 0)))
        else:
            self.reply(self.replies.pop(number - len(self.in_flight)))

    def reply(self, request: Propose) -> None:
        sources = [str(self.rng.randrange(self.kernels)) for _ in range(self.rng.randrange(4))]
        edits = (
            Edit(Category.TUNING, source, WholeSource(source), prior=self.rng.random()) for source in sources
        )
        self.search.proposed(request, Proposals(tuple(edits), dollars=0.25))

    def roll_out(self) -> None:
        tree = self.search.tree
        left = [node for node in tree.evaluated if node not in tree.rollouts]
        if left:
            gains = [math.exp(self.rng.uniform(-1, 1)) for _ in range(self.rng.randrange(3))]
            steps = (RolloutStep("edit", PredictionRecord(1.0, gain=gain, sigma=0.1)) for gain in gains)
            self.search.rolled_out(self.rng.choice(left), tuple(steps))

    def die_and_resume(self) -> None:
        self.search = TreeSearch(fold(self.journal.events), self.journal, self.blobs)
        self.replies = []
        assert sorted(self.search.resume()) == sorted(self.in_flight)

    def drain(self) -> None:
        while self.in_flight or self.replies:
            self.come_back()


def assert_sound(tree: Tree) -> None:
    statistics, edges = tree.node_statistics, tree.edge_statistics
    evaluated = [node for node in tree.nodes if node.evaluation]
    traversals = [tree.path_to(node.id) for node in evaluated]
    flying = [*map(tree.path_to, tree.pending), *tree.awaiting.values()]
    for node in tree.nodes:
        out = node.edges.view
        own = 1 if node.evaluation else 0
        assert statistics.visits[node.id] == own + edges.visits.view[out].sum()
        assert statistics.in_flight[node.id] == sum(node.id in path for path in flying)
        rewards = [tree.nodes[path[-1]].score.reward for path in traversals if node.id in path]
        assert statistics.visits[node.id] == len(rewards)
        assert statistics.reward_max[node.id] == max(rewards, default=float("-inf"))
        assert statistics.reward_sum[node.id] == pytest.approx(sum(rewards))
        lineage = tree.lineage(node.id)
        assert (lineage[0], lineage[-1], len(lineage)) == (0, node.id, node.depth + 1)
        below = [other for other in tree.nodes if node.id in tree.lineage(other.id)]
        assert statistics.ready[node.id] == sum(other.ready for other in below)
        assert statistics.open[node.id] == node.ready
        assert statistics.reward[node.id] == (node.score.reward if node.score else float("-inf"))
        if tree.children_of(node.id) and node.outcome is not Outcome.OK:
            assert node.outcome in REPAIRABLE
            assert node.failures_in_a_row <= tree.policy.repair_depth
        open_children = [child for child in edges.child.view[out].tolist() if statistics.ready[child]]
        assert node.open_ways is None or node.open_ways.children.tolist() == open_children
        assert len(node.fates) == len(node.edits)
        settled = [number for number, fate in enumerate(node.fates) if fate.node is not None or fate.reason]
        assert sorted([*settled, *node.untried]) == list(range(len(node.edits)))
    assert len({node.kernel.identity for node in tree.nodes}) == len(tree.nodes)
    for number, edge in enumerate(tree.edges):
        assert edges.visits[number] == sum((edge.parent, edge.child) in pairwise(path) for path in traversals)


policies = st.builds(
    Policy,
    **{field: st.sampled_from(sorted(functions)) for field, functions in CHOICES.items()},
    exploration=st.sampled_from([0.0, 0.5, 2.0]),
    widening_factor=st.sampled_from([0.5, 1.0, 3.0]),
    widening_exponent=st.sampled_from([0.0, 0.5, 1.0]),
    virtual_loss=st.sampled_from([0.0, 1.0, 3.0]),
    repair_depth=st.integers(0, 3),
    patience=st.integers(1, 3),
)


@settings(max_examples=60, deadline=None)
@given(
    rng=st.randoms(use_true_random=False),
    policy=policies,
    workers=st.integers(1, 8),
    kernels=st.sampled_from([3, 12, 1000]),
    steps=st.integers(1, 120),
)
def test_tree_stays_sound(rng: random.Random, policy: Policy, workers: int, kernels: int, steps: int) -> None:
    chaos = Chaos(rng, policy, workers, kernels)
    for _ in range(steps):
        if not chaos.step():
            break
    assert_sound(chaos.search.tree)
    chaos.drain()
    tree = chaos.search.tree
    assert_sound(tree)
    assert not tree.node_statistics.in_flight.view.any()
    assert not tree.edge_statistics.in_flight.view.any()
    assert tree == fold(chaos.journal.events)
    assert tree.evaluations == len(tree.nodes)


@pytest.mark.parametrize("seed", range(4))
def test_small_space_is_searched_until_it_is_exhausted(seed: int) -> None:
    chaos = Chaos(seeded(seed), Policy(strategy="mcts", repair_depth=3, patience=30), workers=3, kernels=10)
    for _ in range(20_000):
        if not chaos.step():
            break
    assert isinstance(chaos.search.ask(), Exhausted)
    assert len(chaos.search.tree.nodes) > 3


def test_same_seed_gives_the_same_tree_and_another_process_continues_it() -> None:
    def events(resume_after: int | None) -> list[Any]:
        journal, blobs = MemoryJournal(), MemoryBlobs()
        search = TreeSearch(Tree(), journal, blobs, clock=lambda: 0.0)
        search.start(Kernel("0"), Policy(strategy="mcts", order="sampled"), seed=7)
        search.evaluated(0, *verdict("0"))
        for number in range(150):
            if number == resume_after:
                search = TreeSearch(fold(journal.events), journal, blobs, clock=lambda: 0.0)
            match search.ask():
                case Propose() as request:
                    rng = seeded(search.proposal_seed(request.node))
                    sources = [f"{request.node} {rng.randrange(100)}" for _ in range(4)]
                    edits = [Edit(Category.TUNING, s, WholeSource(s), prior=rng.random()) for s in sources]
                    search.proposed(request, Proposals(tuple(edits)))
                case Try(edit=Edit(change=WholeSource(source=source))) as request:
                    node = search.submit(request, Kernel(source))
                    if node is not None:
                        search.evaluated(node, *verdict(source))
        return journal.events

    assert events(None) == events(None) == events(40) == events(101)


def verdict(source: str) -> tuple[Evaluation, Score]:
    reward = seeded(source).random()
    return Evaluation(Outcome.OK, Source.MODELLED), Score(reward, reward)


def test_texts_come_back(tell: Any) -> None:
    story = tell()
    story.evaluate(0, 0.0, log="ptxas info")
    assert story.search.evaluation(0).log == "ptxas info"
    assert story.tree.nodes[0].evaluation.log == ""
    assert story.search.kernel(0) == Kernel("root")
    patch = Edit(Category.REPAIR, "t", Patch((Block("a", "b\n"), Block("c", ""))), "why", "what", 2.0, "me")
    story.search.proposed(story.search.ask(), Proposals((patch,)))
    assert story.search.ask().edit == patch


def test_what_json_cannot_hold_is_made_storable(tell: Any) -> None:
    story = tell()
    check = Check("n=1", 0, passed=False, error=float("inf"))
    story.evaluate(
        0, 0.0, message="unpaired \udc80", checks=(check,), counters={"x": float("nan")}, log="\udc80"
    )
    evaluation = story.tree.nodes[0].evaluation
    assert evaluation.message == "unpaired ?"
    assert evaluation.checks[0].error > 1e308
    odd = Edit(Category.TUNING, "\udc80", Patch((Block("a", "\udc80"),)))
    story.search.proposed(story.search.ask(), Proposals((odd,)))
    assert story.search.ask().edit == Edit(Category.TUNING, "?", Patch((Block("a", "?"),)))
    assert story.replayed() == story.tree


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        (Started(policy=Policy(), seed=0), "starts once"),
        (
            Evaluated(node=0, evaluation=Evaluation(Outcome.OK, Source.MODELLED), score=Score(0, 0)),
            "in flight",
        ),
        (Proposed(node=9, edits=()), "no node 9"),
        (Duplicated(node=0, edit=0, of=0), "isn't waiting"),
        (Refused(node=0, edit=-1, reason="x"), "isn't waiting"),
    ],
)
def test_impossible_events_are_refused(tell: Any, event: Any, sentence: str) -> None:
    story = tell()
    story.evaluate(0, 0.0)
    with pytest.raises(TreeError, match=sentence):
        apply(story.tree, event)
    assert story.replayed() == story.tree


def test_telling_twice_is_the_callers_mistake_and_leaves_no_trace(tell: Any) -> None:
    story = tell()
    story.evaluate(0, 0.0)
    events = len(story.journal.events)
    with pytest.raises(TreeError, match="isn't in flight"):
        story.evaluate(0, 1.0)
    assert len(story.journal.events) == events
