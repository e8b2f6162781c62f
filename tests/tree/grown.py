"""A search over synthetic kernels that a test drives event by event, by its strategy or against it."""

import itertools
from collections.abc import Sequence
from typing import Any

from mctskernel.core.edit import Category, Edit, Factor, WholeSource
from mctskernel.core.evaluation import Evaluation, Outcome, Score, Source
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import Proposals
from mctskernel.tree.blobs import MemoryBlobs
from mctskernel.tree.choices import with_choices
from mctskernel.tree.journal import MemoryJournal
from mctskernel.tree.node import Node, Tree
from mctskernel.tree.policy import Policy
from mctskernel.tree.replay import replay
from mctskernel.tree.search import TreeSearch
from mctskernel.tree.strategies.strategy import Propose, Step

SOURCES = itertools.count()


def edit(title: str = "", category: Category = Category.TUNING, prior: float = 1.0, **levels: float) -> Edit:
    """An edit to a kernel that no other edit makes; keywords are its factors."""
    factors = tuple(Factor(name, level) for name, level in levels.items())
    source = WholeSource(f"kernel {next(SOURCES)}")
    return Edit(category, title or str(levels), source, prior=prior, factors=factors)


class Grown:
    """A tree whose root is evaluated, unless `reward` is None; by PUCT, which can be followed by hand."""

    def __init__(
        self, reward: float | None = 0.0, seed: int = 1, strategy: str = "puct", **choices: Any
    ) -> None:
        self.journal, self.blobs = MemoryJournal(), MemoryBlobs()
        self.search = TreeSearch(Tree(), self.journal, self.blobs, clock=lambda: 0.0)
        policy = with_choices(Policy(), {"strategy": strategy, **choices})
        self.search.start(Kernel("root"), policy, seed=seed)
        if reward is not None:
            self.evaluate(0, reward)

    @property
    def tree(self) -> Tree:
        return self.search.tree

    def node(self, number: int) -> Node:
        return self.tree.nodes[number]

    def evaluate(self, node: int, reward: float, outcome: Outcome = Outcome.OK, **facts: Any) -> None:
        """The speed-up is the reward, if the outcome is ok."""
        speedup = max(reward, 0.0) if outcome is Outcome.OK else 0.0
        evaluation = Evaluation(outcome, Source.MODELLED, **facts)
        self.search.evaluate(node, evaluation, Score(reward, speedup, {"time": reward}))

    # As the search goes.
    def propose(self, *sources: str, priors: Sequence[float] = ()) -> int:
        """Answer the next request, which must be one for edits. Returns its node."""
        request = self.search.next_action()
        assert isinstance(request, Propose), request
        self.offer_sources(request.node, *sources, priors=priors)
        return request.node

    def next_edit(self) -> tuple[Step, Edit]:
        """What is to be tried next."""
        step = self.search.next_action()
        assert isinstance(step, Step), step
        return step, self.search.edit(step.node, step.edit)

    def submit(self) -> tuple[Edit, int | None]:
        """Submit what is to be tried next."""
        step, edit = self.next_edit()
        assert isinstance(edit.change, WholeSource)
        return edit, self.search.submit(step, Kernel(edit.change.source))

    def try_next(self, reward: float, outcome: Outcome = Outcome.OK) -> int:
        """Submit and evaluate what is to be tried next. Returns its node, which must be new."""
        _, node = self.submit()
        assert node is not None
        self.evaluate(node, reward, outcome)
        return node

    # Wherever the test wants it.
    def offer(self, node: int, *edits: Edit) -> None:
        self.search.propose(node, Proposals(edits))

    def offer_sources(self, node: int, *sources: str, priors: Sequence[float] = ()) -> None:
        weights = priors or [1.0] * len(sources)
        pairs = zip(sources, weights, strict=True)
        self.offer(node, *(Edit(Category.TUNING, s, WholeSource(s), prior=prior) for s, prior in pairs))

    def begin(self, node: int, number: int) -> int:
        """Submit the kernel of an edit. Returns its node."""
        change = self.search.edit(node, number).change
        assert isinstance(change, WholeSource)
        made = self.search.submit(Step(node, number), Kernel(change.source))
        assert made is not None
        return made

    def make(self, node: int, number: int, reward: float, outcome: Outcome = Outcome.OK) -> int:
        """Submit and evaluate the kernel of an edit. Returns its node."""
        made = self.begin(node, number)
        self.evaluate(made, reward, outcome)
        return made

    def grow(self, node: int, *rewards: float, outcome: Outcome = Outcome.OK) -> list[int]:
        """Evaluate a new edit of a node for each reward. Returns their nodes."""
        first = len(self.node(node).edits)
        self.offer(node, *(edit(f"{node} {first + i}") for i in range(len(rewards))))
        return [self.make(node, first + i, reward, outcome) for i, reward in enumerate(rewards)]

    def replayed(self) -> Tree:
        return replay(self.journal.events)
