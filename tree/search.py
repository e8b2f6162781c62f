"""What to do next in a tree, and the record of what came of it: journalled before it changes the tree."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import msgspec
import numpy as np

from mctskernel.core.edit import Edit, Factor
from mctskernel.core.evaluation import REPAIRABLE, Evaluation, Outcome, Score
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import Attempt, ProposalRequest, Proposals
from mctskernel.core.task import Task
from mctskernel.registry import in_use
from mctskernel.tree.blobs import (
    Blobs,
    get_edit,
    get_kernel,
    put_edit,
    put_exchange,
    put_kernel,
    put_text,
)
from mctskernel.tree.choices import check_policy, open_strategy
from mctskernel.tree.events import (
    Duplicated,
    Evaluated,
    Event,
    Proposed,
    Refused,
    Requested,
    Resumed,
    Retimed,
    Started,
    Submitted,
)
from mctskernel.tree.journal import EventLog
from mctskernel.tree.node import Node, Tree
from mctskernel.tree.policy import Policy
from mctskernel.tree.replay import advance, check
from mctskernel.tree.strategies.strategy import Action, Propose, Step, Strategy
from mctskernel.tree.trajectory import TrackRecord, edit_attempts, lineage_attempts

GAINS_ELSEWHERE = 8  # how many edits that made other kernels faster a proposer sees

BESIDE = 12  # how many other edits of the kernels that led to a node a proposer sees

REPAIR_WINDOW = 32  # evaluations, the latest, among which a failure to repair is looked for


class TreeSearch:
    """A tree with its journal and blobs.

    A new search: `start`, then record the root's evaluation. A resumed one: give the tree of its journal, call `resume`
    and evaluate the nodes that it returns. Then take the `next_action` and record what came of it until the budget is
    spent. All methods that record raise RunError, and TreeError for what can't follow.
    """

    def __init__(
        self, tree: Tree, journal: EventLog, blobs: Blobs, clock: Callable[[], float] = time.time
    ) -> None:
        self.tree = tree
        self._journal = journal
        self._blobs = blobs
        self._clock = clock
        self._track_record = TrackRecord()

    def start(self, kernel: Kernel, policy: Policy, seed: int) -> int:
        """Begin a search at a kernel. Returns its node, 0, which is to be evaluated."""
        check_policy(policy)
        self._record(Started(policy=policy, seed=seed, at=self._clock()))
        factors = tuple(Factor(name, value) for name, value in kernel.settings.items())
        record = msgspec.structs.replace(put_kernel(self._blobs, kernel), factors=factors)
        self._record(Submitted(node=0, kernel=record, at=self._clock()))
        return 0

    def resume(self) -> tuple[int, ...]:
        """Continue after another process. Returns the nodes whose evaluation it didn't finish."""
        check_policy(self.tree.policy)
        self._record(Resumed(at=self._clock()))
        return tuple(self.tree.pending)

    def next_action(self) -> Action | None:
        """Return a repair, or else the strategy's step; None before something comes back. Changes nothing."""
        repair = _repair(self.tree) if self.tree.policy.repair == "at-once" else None
        with in_use("strategy", self.tree.policy.strategy):
            return repair or self._strategy.step(self.tree, self._rng)

    def request(self, node: int) -> None:
        """Record that a proposer was asked for edits of a node, which is passed over until they are recorded."""
        self._record(Requested(node=node, at=self._clock()))

    def propose(self, node: int, proposals: Proposals) -> None:
        """Record a proposer's reply. Edits that the node has already are dropped."""
        edits = tuple(put_edit(self._blobs, edit) for edit in proposals.edits)
        self._record(
            Proposed(
                node=node,
                edits=edits,
                dollars=proposals.cost,
                more=proposals.more,
                silent=proposals.is_silent,
                exchanges=tuple(put_exchange(self._blobs, exchange) for exchange in proposals.exchanges),
                dropped=proposals.dropped,
                at=self._clock(),
            )
        )

    def submit(self, step: Step, kernel: Kernel) -> int | None:
        """Record the kernel that an edit made. Returns its node, to be evaluated; None if the kernel is known."""
        at, parent, edit = self._clock(), step.node, step.edit
        known = self.tree.by_identity.get(kernel.identity)
        if known is not None:
            self._record(Duplicated(node=parent, edit=edit, of=known, at=at))
            return None
        record, node = put_kernel(self._blobs, kernel), len(self.tree.nodes)
        self._record(Submitted(node=node, kernel=record, parent=parent, edit=edit, at=at))
        return node

    def refuse(self, step: Step, reason: str) -> None:
        """Record that an edit made no kernel, and why, in a sentence."""
        self._record(Refused(node=step.node, edit=step.edit, reason=reason, at=self._clock()))

    def evaluate(self, node: int, evaluation: Evaluation, score: Score) -> None:
        """Record a node's evaluation, in place of the one that it has. The reward must be finite."""
        log = ""
        if evaluation.log:
            log, evaluation = put_text(self._blobs, evaluation.log), replace(evaluation, log="")
        kind = Evaluated if self.tree.nodes[node].evaluation is None else Retimed
        self._record(kind(node=node, evaluation=evaluation, score=score, log=log, at=self._clock()))

    def kernel(self, node: int) -> Kernel:
        return get_kernel(self._blobs, self.tree.nodes[node].kernel)

    def edit(self, node: int, number: int) -> Edit:
        return get_edit(self._blobs, self.tree.nodes[node].edits[number])

    def evaluation(self, node: int) -> Evaluation | None:
        """Return the evaluation of a node with its log; None while it is pending."""
        found = self.tree.nodes[node]
        if found.evaluation is None or not found.log:
            return found.evaluation
        return replace(found.evaluation, log=self._blobs.get(found.log))

    def proposal_request(self, number: int, task: Task) -> ProposalRequest:
        tree = self.tree
        node, evaluation = tree.nodes[number], self.evaluation(number)
        if evaluation is None or node.score is None:
            raise ValueError(f"Node {number} isn't evaluated yet.")
        self._track_record.update(tree)
        return ProposalRequest(
            task=task,
            kernel=self.kernel(number),
            evaluation=evaluation,
            lineage=lineage_attempts(tree, number),
            siblings=edit_attempts(tree, number),
            seed=self.proposal_seed(number),
            offered=len(node.edits),
            node=number,
            elsewhere=self._track_record.elsewhere(tree, number, GAINS_ELSEWHERE),
            standings=self._track_record.standings(),
            speedup=node.score.speedup,
            best_speedup=self._track_record.best_speedup,
            fruitless=node.fruitless_replies,
            beside=self._beside(number),
            lost=tuple(reason for each in tree.lineage(number)[::-1] for reason in tree.nodes[each].lost),
        )

    def _beside(self, number: int) -> tuple[Attempt, ...]:
        """What else was tried on the kernels that led to a node, the latest last."""
        lineage = self.tree.lineage(number)
        found = (each for node in lineage[:-1] for each in edit_attempts(self.tree, node))
        return tuple(each for each in found if each.node not in lineage)[-BESIDE:]

    def proposal_seed(self, node: int) -> int:
        """Return a seed for a proposer's next reply about a node, the same in a search that is repeated or resumed."""
        text = f"{self.tree.seed} {node} {len(self.tree.nodes[node].edits)}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])

    def _record(self, event: Event) -> None:
        check(self.tree, event)
        advance(self.tree, self._journal.append(event))

    @cached_property
    def _strategy(self) -> Strategy:
        return open_strategy(self.tree.policy)

    def _rng(self) -> np.random.Generator:
        # Stateless, so that a resumed search draws what the whole one would have drawn.
        return np.random.default_rng((self.tree.seed, self.tree.events))


def _repair(tree: Tree) -> Action | None:
    """What repairs the latest failure that was given no edits, or has some and none that worked or is pending.

    A failure is given edits once. `repair_depth` bounds how many failures may follow each other.
    """
    for node in map(tree.nodes.__getitem__, tree.evaluated[: -REPAIR_WINDOW - 1 : -1]):
        if node.outcome not in REPAIRABLE or not node.ready or _has_hope(tree, node):
            continue
        if node.untried:
            return Step(node.id, node.untried[0])
        if not node.edits and not node.fruitless_replies:
            return Propose(node.id)
    return None


def _has_hope(tree: Tree, node: Node) -> bool:
    """Whether an edit of a node made a kernel that works, or is pending."""
    made = (tree.nodes[fate.node] for fate in node.fates if fate.node is not None)
    return any(child.evaluation is None or child.outcome is Outcome.OK for child in made)
