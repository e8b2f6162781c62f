"""Whatever comes back in whatever order, the tree stays sound and its journal gives it back, for every strategy."""

import random
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mctskernel.core.edit import Block, Category, Edit, Factor, Patch, WholeSource
from mctskernel.core.evaluation import REPAIRABLE, Check, Evaluation, Outcome, Score, Source
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import Dropped, Exchange, Loss, Proposals, Purpose
from mctskernel.core.user_errors import MisuseError
from mctskernel.registry import RegistryError, names
from mctskernel.tree.blobs import MemoryBlobs, get_exchange
from mctskernel.tree.choices import open_strategy, with_choices
from mctskernel.tree.events import Duplicated, Evaluated, Event, Proposed, Refused, Started
from mctskernel.tree.journal import MemoryJournal
from mctskernel.tree.node import Tree
from mctskernel.tree.policy import Policy
from mctskernel.tree.replay import TreeError, apply, replay
from mctskernel.tree.search import TreeSearch
from mctskernel.tree.strategies.strategy import Propose, Step
from tests.tree.grown import Grown

OUTCOMES = (*[Outcome.OK] * 6, Outcome.BUILD_ERROR, Outcome.TIMEOUT)
LEVELS = 3


@dataclass(frozen=True)
class Landscape:
    """Kernels are cells of a grid; an edit changes one coordinate. A few edits don't apply, some kernels fail."""

    seed: int
    dimensions: int

    @property
    def start(self) -> str:
        return "0" * self.dimensions

    def edits(self, kernel: str) -> tuple[Edit, ...]:
        rng = self._rng("edits", kernel)
        found = [
            Edit(
                rng.choice([Category.TUNING, Category.UNROLLING]),
                f"x{axis} = {level}",
                WholeSource(kernel[:axis] + str(level) + kernel[axis + 1 :]),
                prior=rng.choice([1.0, 2.0]),
                factors=(Factor(f"x{axis}", level),) if rng.random() < 0.8 else (),
            )
            for axis in range(self.dimensions)
            for level in range(LEVELS)
            if level != int(kernel[axis])
        ]
        return tuple(rng.sample(found, len(found)))

    def applies(self, node: int, edit: int) -> bool:
        return self._rng("applies", node, edit).random() < 0.95

    def judge(self, kernel: str) -> tuple[Evaluation, Score]:
        rng = self._rng("judge", kernel)
        outcome = Outcome.OK if kernel == self.start else rng.choice(OUTCOMES)
        strange = kernel != self.start and rng.random() < 0.05
        evaluation = Evaluation(outcome, Source.MODELLED, quarantine="faster than light" if strange else "")
        # Few rewards, so that some are equal.
        reward = rng.randrange(8) / 4 if outcome is Outcome.OK else -1.5
        return evaluation, Score(reward, max(reward, 0))

    def _rng(self, *words: object) -> random.Random:
        return random.Random(f"{self.seed} {words}")  # noqa: S311


@dataclass
class Driver:
    """Searches a landscape with up to `workers` evaluations and `proposers` replies in flight."""

    landscape: Landscape
    policy: Policy
    rng: random.Random
    workers: int = 1
    proposers: int = 0
    journal: MemoryJournal = field(default_factory=MemoryJournal)
    blobs: MemoryBlobs = field(default_factory=MemoryBlobs)
    in_flight: list[int] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.search = TreeSearch(Tree(), self.journal, self.blobs, clock=lambda: 0.0)
        self.in_flight.append(self.search.start(Kernel(self.landscape.start), self.policy, seed=5))

    @property
    def tree(self) -> Tree:
        return self.search.tree

    def step(self) -> bool:
        """One thing that may happen. False when nothing is left to search."""
        full = len(self.in_flight) >= self.workers
        if (self.in_flight or self.requests) and (full or self.rng.random() < 0.3):
            self.come_back()
            return True
        match self.search.next_action():
            case None if not self.in_flight and not self.requests:
                return False
            case None:
                self.come_back()
            case Propose(node) if len(self.requests) < self.proposers:
                self.search.request(node)
                self.requests.append(node)
            case Propose(node):
                self._reply(node)
            case Step() as step:
                self._try(step)
        return True

    def resume(self) -> None:
        """Another process continues with the journal."""
        self.search = TreeSearch(replay(self.journal.events), self.journal, self.blobs, clock=lambda: 0.0)
        self.requests.clear()
        assert sorted(self.search.resume()) == sorted(self.in_flight)

    def come_back(self) -> None:
        number = self.rng.randrange(len(self.in_flight) + len(self.requests))
        if number < len(self.in_flight):
            node = self.in_flight.pop(number)
            self.search.evaluate(node, *self.landscape.judge(self.search.kernel(node).source))
        else:
            self._reply(self.requests.pop(number - len(self.in_flight)))

    def _try(self, step: Step) -> None:
        if not self.landscape.applies(step.node, step.edit):
            self.search.refuse(step, "The patch doesn't apply.")
            return
        change = self.search.edit(step.node, step.edit).change
        assert isinstance(change, WholeSource)
        node = self.search.submit(step, Kernel(change.source))
        if node is not None:
            self.in_flight.append(node)

    def _reply(self, node: int) -> None:
        edits = () if self.tree.nodes[node].edits else self.landscape.edits(self.search.kernel(node).source)
        self.search.propose(node, Proposals(edits))


def assert_sound(tree: Tree) -> None:
    """Every statistic is what counting from scratch gives."""
    lineages = {node.id: tree.lineage(node.id) for node in tree.nodes}
    flying = [*tree.pending, *tree.requested]
    for node in tree.nodes:
        below = [other for other in tree.nodes if node.id in lineages[other.id]]
        rewards = [other.score.reward for other in below if other.score is not None]
        assert node.visits == len(rewards)
        assert node.reward_max == max(rewards, default=float("-inf"))
        assert node.reward_sum == pytest.approx(sum(rewards))
        assert node.in_flight == sum(node.id in lineages[number] for number in flying)
        assert node.open == sum(other.ready for other in below)
        assert node.children == [other.id for other in tree.nodes if other.parent == node.id]
        if node.children and node.outcome is not Outcome.OK:
            assert node.outcome in REPAIRABLE
            assert node.failures_in_a_row <= tree.policy.repair_depth
        settled = [number for number, fate in enumerate(node.fates) if fate.node is not None or fate.reason]
        assert sorted([*settled, *node.untried]) == list(range(len(node.edits)))
    assert len({node.kernel.identity for node in tree.nodes}) == len(tree.nodes)


numbers = {
    "patience": st.integers(1, 2),
    "repair": st.sampled_from(["in-turn", "at-once"]),
    "repair_depth": st.integers(0, 2),
}

OPTIONS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "puct": {
        "value": st.sampled_from(["max", "mean"]),
        "exploration": st.sampled_from([0.0, 0.5]),
        "widening_factor": st.sampled_from([0.5, 2.0]),
        "widening_exponent": st.sampled_from([0.0, 0.5, 1.0]),
    },
    "beam": {"width": st.integers(1, 3), "edits": st.integers(1, 3)},
    "annealing": {"temperature": st.sampled_from([0.0, 0.2, 100.0]), "period": st.integers(1, 20)},
    "evolutionary": {"crossover": st.sampled_from([0.0, 0.5, 1.0])},
    "epsilon-net": {"radius": st.sampled_from([0.0, 0.3]), "exploration": st.sampled_from([0.0, 0.3])},
}

drivers = st.builds(
    Driver,
    st.builds(Landscape, st.integers(0, 10**6), st.integers(1, 2)),
    st.builds(Policy, **numbers),
    st.randoms(use_true_random=False),
    st.integers(1, 8),
    st.integers(0, 2),
)

each_strategy = pytest.mark.parametrize("name", names("strategy"))

each_strategy_fitting_slowly = pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name == "mcts" else ()) for name in names("strategy")],
)


def with_strategy(driver: Driver, name: str, data: st.DataObject) -> Driver:
    options = data.draw(st.fixed_dictionaries(OPTIONS.get(name, {})))
    policy = with_choices(driver.policy, {"strategy": name, **options})
    return Driver(driver.landscape, policy, driver.rng, driver.workers, driver.proposers)


@each_strategy_fitting_slowly
@given(drawn=drivers, steps=st.integers(1, 60), data=st.data())
def test_steps_are_legal_and_another_process_makes_the_same(
    name: str, drawn: Driver, steps: int, data: st.DataObject
) -> None:
    driver = with_strategy(drawn, name, data)
    for number in range(steps):
        if number == steps - 1 or driver.rng.random() < 0.1:
            found, before = driver.search.next_action(), len(driver.journal.events)
            assert found is None or driver.tree.nodes[found.node].ready
            assert driver.search.next_action() == found
            assert len(driver.journal.events) == before
            replayed = replay(driver.journal.events)
            assert replayed == driver.tree
            assert TreeSearch(replayed, MemoryJournal(), driver.blobs).next_action() == found
        if driver.rng.random() < 0.03:
            driver.resume()
        if not driver.step():
            break
    assert_sound(driver.tree)


@each_strategy_fitting_slowly
@given(drawn=drivers, data=st.data())
def test_a_search_ends_when_everything_is_tried(name: str, drawn: Driver, data: st.DataObject) -> None:
    driver = with_strategy(drawn, name, data)
    while driver.step():
        assert len(driver.journal.events) < 5_000
    tree = driver.tree
    reached = {driver.search.kernel(node.id).source for node in tree.nodes}
    assert all(node.evaluation for node in tree.nodes)
    for node in tree.nodes[:1] if name == "best-of-n" else tree.nodes:
        assert not node.ready
        if node.outcome is Outcome.OK and node.evaluation and not node.evaluation.quarantine:
            assert not node.untried
            for number, edit in enumerate(driver.landscape.edits(driver.search.kernel(node.id).source)):
                assert isinstance(edit.change, WholeSource)
                assert edit.change.source in reached or not driver.landscape.applies(node.id, number)


@each_strategy
def test_nothing_is_possible_before_the_root_is_evaluated(name: str) -> None:
    assert open_strategy(Policy(strategy=name)).step(Tree(), np.random.default_rng) is None
    grown = Grown(reward=None, strategy=name)
    assert grown.search.next_action() is None
    grown.evaluate(0, -1.6, Outcome.TIMEOUT)
    assert grown.search.next_action() is None


def test_a_resumed_search_continues_as_the_whole_one_would_have() -> None:
    def events(resume_after: int) -> list[Event]:
        driver = Driver(Landscape(1, 5), Policy(), random.Random(0))  # noqa: S311
        for number in range(150):
            if number == resume_after:
                tree = replay(driver.journal.events)
                driver.search = TreeSearch(tree, driver.journal, driver.blobs, clock=lambda: 0.0)
            driver.step()
        return driver.journal.events

    assert events(-1) == events(40) == events(101)


def test_texts_come_back() -> None:
    grown = Grown(reward=None)
    grown.evaluate(0, 0.0, log="ptxas info")
    evaluation = grown.search.evaluation(0)
    assert evaluation is not None
    assert evaluation.log == "ptxas info"
    patch = Edit(Category.REPAIR, "t", Patch((Block("a", "b\n"), Block("c", ""))), "why", "what", 2.0, "me")
    grown.offer(0, patch)
    assert grown.next_edit()[1] == patch


def test_what_json_cannot_hold_is_made_storable() -> None:
    grown = Grown(reward=None)
    check = Check("n=1", 0, passed=False, error=float("inf"))
    facts = {
        "message": "unpaired \udc80",
        "checks": (check,),
        "counters": {"x": float("nan")},
        "log": "\udc80",
    }
    grown.evaluate(0, 0.0, **facts)
    evaluation = grown.node(0).evaluation
    assert evaluation is not None
    assert evaluation.message == "unpaired ?"
    assert evaluation.checks[0].error > 1e308
    grown.offer(0, Edit(Category.TUNING, "\udc80", Patch((Block("a", "\udc80"),))))
    assert grown.next_edit()[1] == Edit(Category.TUNING, "?", Patch((Block("a", "?"),)))
    assert grown.replayed() == grown.tree


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        (Started(policy=Policy(), seed=0), "starts once"),
        (
            Evaluated(node=0, evaluation=Evaluation(Outcome.OK, Source.MODELLED), score=Score(0, 0)),
            "evaluated",
        ),
        (Proposed(node=9, edits=()), "no node 9"),
        (Duplicated(node=0, edit=0, of=0), "isn't waiting"),
        (Refused(node=0, edit=-1, reason="x"), "isn't waiting"),
    ],
)
def test_impossible_events_are_refused_and_change_nothing(event: Event, sentence: str) -> None:
    grown = Grown()
    with pytest.raises(TreeError, match=sentence):
        apply(grown.tree, event)
    assert grown.replayed() == grown.tree


def test_a_reply_is_journalled_with_its_exchanges_losses_and_cost() -> None:
    grown = Grown()
    exchanges = tuple(
        Exchange(Purpose.PROPOSE, "m", "lone \ud800", "x", dollars=cost) for cost in (0.25, 0.5)
    )
    dropped = (Dropped(Loss.AMBIGUOUS, "It fits twice."),)
    grown.search.propose(0, Proposals((), dollars=1.0, exchanges=exchanges, dropped=dropped))
    (event,) = (each for each in grown.journal.events if isinstance(each, Proposed))
    assert event.dollars == 1.75 == grown.replayed().dollars
    assert [each.loss for each in event.dropped] == [Loss.AMBIGUOUS]
    assert [get_exchange(grown.blobs, each).prompt for each in event.exchanges] == ["lone ?"] * 2


@pytest.mark.parametrize(("loss", "ready"), [(Loss.NO_REPLY, True), (Loss.REFUSAL, False)])
def test_no_reply_is_no_answer_about_the_node(loss: Loss, ready: bool) -> None:
    grown = Grown()
    grown.search.propose(0, Proposals((), dropped=(Dropped(loss, "."),)))
    assert grown.node(0).ready is grown.replayed().nodes[0].ready is ready


def test_an_edit_offered_again_is_dropped_and_patience_ends() -> None:
    grown = Grown(patience=2)
    grown.propose("a")
    grown.try_next(0.0, Outcome.TIMEOUT)
    assert grown.propose("a") == grown.propose("a", "a") == 0
    assert grown.search.next_action() is None
    assert len(grown.node(0).edits) == 1


def test_a_proposer_that_has_more_is_asked_again_unless_everything_was_known() -> None:
    grown = Grown()
    first = Edit(Category.TUNING, "root", WholeSource("root"))
    grown.search.propose(0, Proposals((first,), more=True))
    grown.submit()  # a duplicate of the root
    assert grown.search.next_action() == Propose(0)
    grown.search.propose(0, Proposals((first,), more=True))
    assert grown.search.next_action() is None


def test_a_known_kernel_costs_nothing() -> None:
    grown = Grown()
    a, b = grown.grow(0, 1.0, 2.0)
    source = grown.search.kernel(b).source
    grown.offer_sources(a, source)
    assert grown.search.submit(Step(a, 0), Kernel(source)) is None
    assert grown.node(a).visits == 1
    assert grown.tree.transpositions == {(a, b): 0}
    assert grown.replayed() == grown.tree


@pytest.mark.parametrize(
    ("outcome", "depth", "expandable"),
    [
        (Outcome.BUILD_ERROR, 1, True),
        (Outcome.WRONG_RESULT, 1, True),
        (Outcome.BUILD_ERROR, 0, False),
        (Outcome.TIMEOUT, 3, False),
        (Outcome.REJECTED, 3, False),
        (Outcome.UNVERIFIABLE, 3, False),
    ],
)
def test_some_failures_may_be_repaired(outcome: Outcome, depth: int, expandable: bool) -> None:
    grown = Grown(repair_depth=depth)
    (failed,) = grown.grow(0, -1.0, outcome=outcome)
    assert grown.node(failed).ready is expandable
    assert (grown.node(0).visits, grown.node(0).reward_sum) == (2, -1.0)


def test_a_repaired_kernel_may_be_followed_by_another_failure() -> None:
    grown = Grown(repair_depth=1)
    (broken,) = grown.grow(0, -1.0, outcome=Outcome.RACE)
    (again,) = grown.grow(broken, -1.0, outcome=Outcome.RACE)
    (repaired,) = grown.grow(broken, 1.0)
    (later,) = grown.grow(repaired, -1.0, outcome=Outcome.RACE)
    assert [grown.node(node).ready for node in (again, repaired, later)] == [False, True, True]


@each_strategy
def test_repairs_at_once_come_first_until_one_of_them_works(name: str) -> None:
    grown = Grown(strategy=name, repair="at-once", patience=3)
    grown.propose("broken", "fine")
    grown.try_next(-1.0, Outcome.BUILD_ERROR)
    assert grown.search.next_action() == Propose(1)
    grown.propose("worse", "repaired", "other")
    grown.try_next(-1.0, Outcome.BUILD_ERROR)
    assert grown.submit()[0].title == "repaired"  # which is pending: the search continues elsewhere
    if name == "mcts":
        assert grown.next_edit()[1].title == "fine"
    grown.evaluate(3, 1.0)
    action = grown.search.next_action()
    assert not isinstance(action, Step) or grown.node(action.node).edits[action.edit].title != "other"


def test_a_quarantined_kernel_has_no_children() -> None:
    grown = Grown(reward=None)
    grown.evaluate(0, 0.0, quarantine="faster than the roofline")
    assert grown.search.next_action() is None


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        ({"strategy": "puct", "exploration": "-1"}, "exploration is '-1'. Expected `float` >= 0"),
        ({"strategy": "puct", "value": "least"}, "value is 'least'. It must be one of max, mean"),
        ({"patience": "0"}, "patience is '0'. Expected `int` >= 1"),
        ({"patience": "many"}, "patience is 'many'. Expected `int`"),
        ({"trst": 9}, "There is no choice of the strategy mcts 'trst'. Did you mean 'trust'?"),
        ({"exploration": 1}, "There is no choice of the strategy mcts 'exploration'"),
        ({"repair": "never"}, "repair is 'never'. It must be one of in-turn, at-once"),
    ],
)
def test_wrong_choices_are_refused_in_a_sentence(choices: dict[str, object], sentence: str) -> None:
    with pytest.raises(MisuseError, match=re.escape(sentence)):
        with_choices(Policy(), choices)


def test_what_is_not_registered_is_refused_before_a_search() -> None:
    with pytest.raises(RegistryError, match="Did you mean"):
        Grown(strategy="mtcs")


def test_settings_are_read_by_the_type_of_their_field() -> None:
    found = {"strategy": "puct", "patience": "3", "exploration": "2", "value": "max"}
    policy = with_choices(Policy(), found)
    assert policy == Policy(strategy="puct", patience=3, options={"exploration": 2.0, "value": "max"})
    # Another strategy begins with its own options.
    assert with_choices(policy, {"strategy": "mcts", "trust": 3}).options == {"trust": 3.0}
