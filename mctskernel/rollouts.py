"""Rollouts: from each new node a short line of edits that a surrogate prices and nobody evaluates, journalled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec
import numpy as np

from mctskernel.core.edit import Edit
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import ProposalRequest, Proposer
from mctskernel.core.task import Task
from mctskernel.edits.patch import PatchError, apply
from mctskernel.edits.proposer import RuleProposer
from mctskernel.predictions import Predictions
from mctskernel.tree.events import RolloutStep
from mctskernel.tree.node import Node
from mctskernel.tree.rollouts import ROLLOUTS
from mctskernel.tree.search import TreeSearch

STREAM = 1
"""Sets the random numbers of rollouts apart from others of the same seed."""


@dataclass(frozen=True)
class _Line:
    """The titles of edits and the kernels after them, by identity; `begins` is that of the node's own kernel."""

    begins: str
    steps: tuple[tuple[str, str], ...]

    @property
    def kernels(self) -> set[str]:
        return {self.begins, *(kernel for _, kernel in self.steps)}


@dataclass
class Rollouts:
    """Rolls out the nodes of a search whose kernels are right, as they are evaluated.

    `proposer` costs no money, whoever proposes to the search. With `wait`, a node is rolled out before the search goes
    on.
    """

    tree_search: TreeSearch
    task: Task
    predictions: Predictions
    wait: bool
    proposer: Proposer = field(default_factory=RuleProposer)
    _seen: int = 0
    _ahead: list[int] = field(default_factory=list)
    _lines: dict[int, _Line] = field(default_factory=dict)

    def catch_up(self, is_over: Callable[[], bool]) -> None:
        """Roll out what was evaluated since the last call, and journal what is answered.

        Waits for nothing once the search `is_over`.
        """
        self.predictions.collect()
        self._ahead += self._new_nodes()
        while self._ahead and not is_over() and (self.wait or self.predictions.has_room):
            node = self._ahead.pop(0)
            self._lines[node] = self._begin(node)
        if self.wait:
            self.predictions.settle(is_over)
        self._record_answers()

    def _new_nodes(self) -> list[int]:
        tree = self.tree_search.tree
        new, self._seen = tree.evaluated[self._seen :], len(tree.evaluated)
        return [node for node in new if node not in tree.rollouts and _deserves_one(tree.nodes[node])]

    def _begin(self, node: int) -> _Line:
        kernel, evaluation = self.tree_search.kernel(node), self.tree_search.evaluation(node)
        steps = () if evaluation is None else self._steps(node, kernel, evaluation)
        begins = self.predictions.ask(kernel)
        return _Line(begins, tuple((edit.title, self.predictions.ask(made)) for edit, made in steps))

    def _steps(self, node: int, kernel: Kernel, evaluation: Evaluation) -> Iterator[tuple[Edit, Kernel]]:
        """The edits of a line, each with the kernel after it. The same line whenever the search comes to it."""
        tree = self.tree_search.tree
        rng = np.random.default_rng(np.random.SeedSequence((tree.seed, node), spawn_key=(STREAM,)))
        passed: set[str] = set()
        for _ in range(tree.policy.rollout_depth):
            # What nobody evaluates has no evidence of its own: the node's stands in for it.
            reply = self.proposer.propose(ProposalRequest(self.task, kernel, evaluation))
            step = self._choose(kernel, list(reply.edits), passed, rng)
            if step is None:
                return
            yield step
            kernel = step[1]
            passed.add(kernel.identity)

    def _choose(
        self, kernel: Kernel, edits: list[Edit], passed: set[str], rng: np.random.Generator
    ) -> tuple[Edit, Kernel] | None:
        """An edit that applies and makes a kernel which neither the tree nor the line has; None without one."""
        tree = self.tree_search.tree
        choose = ROLLOUTS[tree.policy.rollout]
        while edits and (number := choose(np.array([edit.prior for edit in edits]), rng)) is not None:
            edit = edits.pop(number)
            try:
                made = apply(kernel, edit)
            except PatchError:
                continue
            if made.identity not in tree.by_identity and made.identity not in passed:
                return edit, made
        return None

    def _record_answers(self) -> None:
        for node, line in list(self._lines.items()):
            if all(kernel in self.predictions for kernel in line.kernels):
                del self._lines[node]
                self.tree_search.rolled_out(node, tuple(self._priced(line)))

    def _priced(self, line: _Line) -> Iterator[RolloutStep]:
        own = self.predictions[line.begins]
        for title, kernel in line.steps:
            prediction = self.predictions[kernel]
            if prediction is None:
                yield RolloutStep(title)
            else:
                record = self.predictions.against(own, prediction)
                yield RolloutStep(title, msgspec.structs.replace(record, terms={}))


def _deserves_one(node: Node) -> bool:
    """Whether a node competes with siblings, and by a time that is believed."""
    evidence = node.evidence
    return node.parent is not None and evidence is not None and evidence.ok and not evidence.quarantine
