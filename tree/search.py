"""Ask and tell: what to do next, and what came of it; journalled before it changes the tree."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec
import numpy as np

from mctskernel.core.edit import Edit, Factor
from mctskernel.core.evaluation import Evaluation, Score
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import ProposalRequest, Proposals
from mctskernel.core.task import Task
from mctskernel.tree.blobs import (
    BlobStore,
    get_edit,
    get_kernel,
    put_edit,
    put_exchange,
    put_kernel,
    put_text,
)
from mctskernel.tree.choices import check_names
from mctskernel.tree.events import (
    Asked,
    DroppedRecord,
    Duplicated,
    Evaluated,
    Event,
    Predicted,
    PredictionRecord,
    Proposed,
    Refused,
    Resumed,
    RolledOut,
    RolloutStep,
    Started,
    Submitted,
)
from mctskernel.tree.expansion import is_dissenting
from mctskernel.tree.fold import advance
from mctskernel.tree.journal import EventLog
from mctskernel.tree.legality import check
from mctskernel.tree.lookahead import most_promising
from mctskernel.tree.node import Tree
from mctskernel.tree.policy import Policy
from mctskernel.tree.repairs import REPAIRS
from mctskernel.tree.strategies import STRATEGIES
from mctskernel.tree.strategies.strategy import Propose, Step, Strategy
from mctskernel.tree.track_record import TrackRecord
from mctskernel.tree.trajectory import edit_attempts, lineage_attempts

GAINS_ELSEWHERE = 8
"""How many edits that made other kernels faster a proposer is told of."""


@dataclass(frozen=True)
class Try:
    """Apply the edit to the kernel of the last node of `path`, then tell `submit` or `refuse`."""

    path: tuple[int, ...]
    number: int
    edit: Edit

    @property
    def node(self) -> int:
        """The node whose kernel is edited."""
        return self.path[-1]


@dataclass(frozen=True)
class Wait:
    """Nothing can be done before an evaluation or a reply in flight comes back."""


@dataclass(frozen=True)
class Exhausted:
    """Nothing is left to try, and nothing in flight."""


Request = Propose | Try | Wait | Exhausted
"""What to do next."""


class TreeSearch:
    """A tree with its journal and blobs.

    A new search: `start`, then tell the root's evaluation. A resumed one: give the tree of its journal, call
    `resume`, and evaluate the nodes that it returns. Then ask and tell until the budget is spent.
    """

    def __init__(
        self,
        tree: Tree,
        journal: EventLog,
        blobs: BlobStore,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.tree = tree
        self._journal = journal
        self._blobs = blobs
        self._clock = clock
        self._track_record = TrackRecord()

    def start(self, kernel: Kernel, policy: Policy, seed: int) -> int:
        """Begins a search at a kernel. Returns its node, 0, which is to be evaluated."""
        check_names(policy)
        self._record(Started(policy=policy, seed=seed, at=self._clock()))
        factors = tuple(Factor(name, value) for name, value in kernel.settings.items())
        record = msgspec.structs.replace(put_kernel(self._blobs, kernel), factors=factors)
        self._record(Submitted(node=0, kernel=record, at=self._clock()))
        return 0

    def resume(self) -> tuple[int, ...]:
        """Goes on after another process. Returns the nodes whose evaluation it didn't finish."""
        check_names(self.tree.policy)
        self._record(Resumed(at=self._clock()))
        return tuple(self.tree.pending)

    def ask(self) -> Request:
        """What to do next. Changes nothing: asked twice, it says the same."""
        found = self.outlook(1 if is_dissenting(self.tree) else self.tree.policy.lookahead)
        if not found:
            return Wait() if self.tree.pending or self.tree.awaiting else Exhausted()
        if isinstance(found[-1], Propose):
            return found[-1]
        step = most_promising(self.tree, [step for step in found if isinstance(step, Step)])
        return Try(step.path, step.edit, self.edit(step.node, step.edit))

    def outlook(self, count: int) -> tuple[Step | Propose, ...]:
        """What comes next, at the most `count` steps, if each of them were in flight at once. Changes nothing.

        A node that needs edits is the last of them. A repair that is due is the only one.
        """
        repair = REPAIRS[self.tree.policy.repair](self.tree)
        if repair is not None:
            return (repair,)
        return self._strategy.steps(self.tree, count, self._rng)

    def asked(self, request: Propose) -> None:
        """Tells that a proposer works on a node, which is passed over until `proposed`."""
        path = self._detour(request.path)
        self._record(Asked(node=request.node, path=path, at=self._clock()))

    def proposed(self, request: Propose, proposals: Proposals) -> None:
        """Tells a proposer's reply. Edits that the node was offered before are dropped."""
        edits = tuple(put_edit(self._blobs, edit) for edit in proposals.edits)
        self._record(
            Proposed(
                node=request.node,
                edits=edits,
                dollars=proposals.cost,
                remarks=proposals.remarks,
                more=proposals.more,
                silent=proposals.is_silent,
                exchanges=tuple(put_exchange(self._blobs, exchange) for exchange in proposals.exchanges),
                dropped=tuple(DroppedRecord(each.loss, each.reason) for each in proposals.dropped),
                at=self._clock(),
            )
        )

    def predicted(self, node: int, edit: int | None, prediction: PredictionRecord) -> None:
        """Tells a surrogate's prediction of what an edit of a node makes, or of the node's own kernel (None)."""
        self._record(Predicted(node=node, edit=edit, prediction=prediction, at=self._clock()))

    def rolled_out(self, node: int, steps: tuple[RolloutStep, ...]) -> None:
        """Tells the rollout of an evaluated node, edit by edit."""
        self._record(RolledOut(node=node, steps=steps, at=self._clock()))

    def submit(self, attempt: Try, kernel: Kernel) -> int | None:
        """Tells the kernel that an edit made. Returns its node, to be evaluated; None if it is known."""
        at = self._clock()
        known = self.tree.by_identity.get(kernel.identity)
        if known is not None:
            self._record(Duplicated(node=attempt.node, edit=attempt.number, of=known, at=at))
            return None
        record, node = put_kernel(self._blobs, kernel), len(self.tree.nodes)
        path, edit = self._detour(attempt.path), attempt.number
        self._record(Submitted(node=node, kernel=record, parent=attempt.node, path=path, edit=edit, at=at))
        return node

    def refuse(self, attempt: Try, reason: str) -> None:
        """Tells that an edit made no kernel, and why, in a sentence."""
        self._record(Refused(node=attempt.node, edit=attempt.number, reason=reason, at=self._clock()))

    def evaluated(self, node: int, evaluation: Evaluation, score: Score) -> None:
        """Tells a node's evaluation. The reward must be finite."""
        log = ""
        if evaluation.log:
            log, evaluation = put_text(self._blobs, evaluation.log), replace(evaluation, log="")
        self._record(Evaluated(node=node, evaluation=evaluation, score=score, log=log, at=self._clock()))

    def kernel(self, node: int) -> Kernel:
        """The kernel of a node."""
        return get_kernel(self._blobs, self.tree.nodes[node].kernel)

    def edit(self, node: int, number: int) -> Edit:
        """An edit of a node."""
        return get_edit(self._blobs, self.tree.nodes[node].edits[number])

    def evaluation(self, node: int) -> Evaluation | None:
        """The evaluation of a node with its log; None while it is in flight."""
        found = self.tree.nodes[node]
        if found.evaluation is None or not found.log:
            return found.evaluation
        return replace(found.evaluation, log=self._blobs.get(found.log))

    def proposal_request(self, request: Propose, task: Task) -> ProposalRequest:
        """What a proposer is to be asked about a node."""
        number, tree = request.node, self.tree
        node, evaluation = tree.nodes[number], self.evaluation(number)
        if evaluation is None or node.score is None:
            raise ValueError(f"Node {number} isn't evaluated yet.")
        self._track_record.follow(tree)
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
        )

    def proposal_seed(self, node: int) -> int:
        """A seed for a proposer's next reply about a node, the same in a search repeated or resumed."""
        text = f"{self.tree.seed} {node} {len(self.tree.nodes[node].edits)}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])

    def _detour(self, path: tuple[int, ...]) -> tuple[int, ...]:
        """The path, unless it is how its last node was made: a deep tree's journal would hold little else."""
        return () if self.tree.is_lineage(path) else path

    def _record(self, event: Event) -> None:
        check(self.tree, event)
        advance(self.tree, self._journal.append(event))

    @cached_property
    def _strategy(self) -> Strategy:
        return STRATEGIES[self.tree.policy.strategy]()

    def _rng(self) -> np.random.Generator:
        # Stateless, so that a resumed search draws what the whole one would have drawn.
        return np.random.default_rng((self.tree.seed, self.tree.events))
