"""The loop: select, propose, evaluate, score, record; until the budget is spent."""

from __future__ import annotations

import enum
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from mctskernel.answer import is_improvement, valid_speedup
from mctskernel.async_proposer import AsyncProposer
from mctskernel.core.edit import Edit
from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.core.executor import Executor
from mctskernel.core.proposer import Dropped, Loss, Proposals, Proposer
from mctskernel.core.task import UNVERIFIED_REFERENCE, Task
from mctskernel.edits.patch import PatchError, apply
from mctskernel.forecast import Forecaster
from mctskernel.profiling.guardrails import flags_against
from mctskernel.profiling.reward import Reward, composite, is_eligible
from mctskernel.run import Budget
from mctskernel.tasks.starts import are_proposed, proposals_of, untried
from mctskernel.tree.events import Event, Resumed
from mctskernel.tree.node import Node, Tree
from mctskernel.tree.search import Action, TreeSearch, Try
from mctskernel.tree.strategies.strategy import Propose
from mctskernel.tree.trajectory import edit_title

POLL_SECONDS = 0.1
"""How long to wait for a finished evaluation before looking at the clock and at Ctrl-C again."""

GRACE_SECONDS = 1.5
"""How long evaluations in flight may still finish once the search should stop: it ends within 2 s."""

REPLY_GRACE_SECONDS = 3.0
"""How long replies in flight may still come when a search ends by itself."""

SILENCES = 3
"""Requests in a row without an answer after which the search ends; it can be resumed."""


class StopReason(enum.StrEnum):
    """Why a search stopped."""

    BUDGET = "the budget is spent"
    EXHAUSTED = "nothing is left to try"
    SILENCE = "no model answers"
    WAITING = "answers are awaited"
    INTERRUPTED = "interrupted"
    NO_BASELINE = "the starting kernel has no valid time"


@dataclass(frozen=True)
class Snapshot:
    """The state of a search after an evaluation; `improved_by` names the edit when it is a new best.

    `note` is what the executor says anew, and then nothing else has changed.
    """

    budget: Budget
    evaluations: int
    outcomes: dict[str, int]
    best_node: int
    best_speedup: float
    source: Source
    elapsed_seconds: float
    dollars: float
    improved_by: str = ""
    unverified_reference: bool = False
    note: str = ""

    @property
    def spent_fraction(self) -> float:
        """How much of the budget is spent, from 0 to 1, by whichever limit is nearest."""
        return self.budget.spent_fraction(self.evaluations, self.elapsed_seconds, self.dollars)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the budget is spent at the present pace; None before anything is known."""
        if not 0 < self.spent_fraction <= 1:
            return None
        return self.elapsed_seconds * (1 / self.spent_fraction - 1)


Follower = Callable[[Snapshot], None]

ABANDONED = Proposals((), dropped=(Dropped(Loss.NO_REPLY, "The search stopped before the reply came."),))
"""Recorded for a request whose reply is not waited for. Asked again, the proposer may have one."""


@dataclass
class Search:
    """What a search works with. `spent_evaluations` and `spent_seconds` were spent on the run before.

    `clock` counts seconds from an arbitrary moment. `choose` says what to do next in place of the tree's policy;
    `forecaster` predicts what may be tried next. An `async_proposer` is asked for edits in place of the proposer, and
    the search goes on meanwhile. `starts` are edits of the root that are tried before anything else.
    """

    tree_search: TreeSearch
    task: Task
    proposer: Proposer
    executor: Executor
    budget: Budget
    follow: Follower
    stop_requested: Callable[[], bool] = lambda: False
    reward: Reward = composite
    spent_evaluations: int = 0
    spent_seconds: float = 0.0
    clock: Callable[[], float] = time.monotonic
    choose: Callable[[], Action] | None = None
    forecaster: Forecaster | None = None
    async_proposer: AsyncProposer | None = None
    starts: tuple[Edit, ...] = ()
    _began: float = field(init=False)
    _in_flight: set[int] = field(default_factory=set)
    # What waits for a step that may raise, for instance because the disk is full: the next `run` continues with it.
    _unsubmitted: deque[int] = field(default_factory=deque)
    _unrecorded: deque[tuple[int, Evaluation]] = field(default_factory=deque)
    _unread_replies: deque[tuple[int, Proposals]] = field(default_factory=deque)
    _requested: dict[int, None] = field(default_factory=dict)
    _silences: int = 0
    _unanswered: int = 0
    _outcomes: Counter[str] = field(default_factory=Counter)
    _best: int = 0
    _notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._notes = self.executor.notes
        self._began = self.clock()
        self._restore()

    def run(self, unfinished: Iterable[int] = ()) -> StopReason:
        """Evaluate the unfinished nodes, then search until the budget is spent. Resumable at any moment.

        A search that waits for answers from outside continues when this is called again, and so does one that could not
        write its journal or read a kernel. To run several searches at a time, call the methods that this is made of.
        """
        self.begin(unfinished)
        while True:
            while self.submit_next():
                pass
            stop_reason = self.stop_reason
            if stop_reason is not None:
                return self.end(stop_reason)
            self.collect(POLL_SECONDS)

    def begin(self, unfinished: Iterable[int] = ()) -> None:
        """Begin the evaluation of the unfinished nodes, however many there are."""
        self._unsubmitted.extend(unfinished)
        self._submit()

    def submit_next(self) -> bool:
        """Begin one more evaluation; False if none can begin before something comes back, or the search is over."""
        before = self.in_flight
        while self.in_flight == before:
            if before >= self.executor.capacity or self._is_over():
                return False
            self._predict()
            if self._is_over() or not self._step():
                return False
        return True

    def collect(self, timeout: float) -> None:
        """Record what has come back, waiting up to `timeout` seconds for the first of it."""
        if self._in_flight and not self._unrecorded:
            self._unrecorded.extend(self.executor.wait(timeout))
            self._report_notes()
        while self._unrecorded:
            self._record(*self._unrecorded[0])
        self._collect_replies(0.0 if self._in_flight else timeout)

    @property
    def stop_reason(self) -> StopReason | None:
        """Why a search that can't begin another evaluation is over; None while something may come back."""
        stop_reason = self._stop_reason()
        if stop_reason is StopReason.INTERRUPTED:
            return stop_reason
        if self._in_flight or (stop_reason is None and self.expects_replies):
            return None
        return stop_reason or (
            StopReason.WAITING if self._requested or self._is_full() else StopReason.EXHAUSTED
        )

    def end(self, stop_reason: StopReason, grace: float = GRACE_SECONDS) -> StopReason:
        """Let evaluations in flight finish for `grace` seconds, and record which replies never came."""
        if stop_reason is not StopReason.WAITING:
            self._drain(grace)
            self._abandon_requests(stop_reason)
        return stop_reason

    @property
    def in_flight(self) -> int:
        """Evaluations that have begun and not come back."""
        return len(self._in_flight)

    @property
    def expects_replies(self) -> bool:
        """Whether waiting brings a reply."""
        return bool(self._unread_replies) or (
            self.async_proposer is not None and self.async_proposer.expects_replies
        )

    @property
    def elapsed_seconds(self) -> float:
        """Seconds spent on the run, earlier processes included."""
        return self.spent_seconds + self.clock() - self._began

    @property
    def evaluations(self) -> int:
        """Evaluations that have finished, those before the search began included."""
        return self.spent_evaluations + self._tree.evaluations

    @property
    def _tree(self) -> Tree:
        return self.tree_search.tree

    def _restore(self) -> None:
        for node in self._tree.nodes:
            if node.evaluation is not None:
                self._outcomes[node.evaluation.outcome] += 1
                if is_improvement(node, self._tree.nodes[self._best]):
                    self._best = node.id

    def _stop_reason(self) -> StopReason | None:
        root = self._tree.nodes[0]
        if self.stop_requested():
            return StopReason.INTERRUPTED
        if root.evaluation is not None and not is_eligible(root.evaluation):
            return StopReason.NO_BASELINE
        limits = (
            (self.evaluations + len(self._in_flight), self.budget.evaluations),
            (self.elapsed_seconds, self.budget.seconds),
            (self._tree.dollars, self.budget.dollars),
        )
        if any(limit is not None and spent >= limit for spent, limit in limits):
            return StopReason.BUDGET
        if self._silences >= SILENCES:
            return StopReason.SILENCE
        return StopReason.EXHAUSTED if self._tree.exhausted else None

    def _is_over(self) -> bool:
        return self._stop_reason() is not None

    def _step(self) -> bool:
        """Do what comes next; False if that is to wait."""
        match (self.choose or self._next_action)():
            case Propose() as request:
                return self._request_edits(request)
            case Try() as attempt:
                self._try(attempt)
                return True
        return False

    def _next_action(self) -> Action:
        """What the tree's policy says, once the other starting points were tried."""
        root = self._tree.nodes[0]
        if self.starts and root.evaluation is not None:
            if not are_proposed(self._tree):
                self.tree_search.propose(0, proposals_of(self.starts))
            number = untried(self._tree)
            if number is not None:
                return Try(0, number, self.tree_search.edit(0, number))
        return self.tree_search.next_action()

    def _request_edits(self, request: Propose) -> bool:
        """Ask for edits of a node; False if as many requests wait for replies as can."""
        if self._is_full():
            return False
        question = self.tree_search.proposal_request(request.node, self.task)
        question = replace(question, unanswered=self._unanswered)
        if self.async_proposer is None:
            self._record_reply(request.node, self.proposer.propose(question))
        else:
            self.tree_search.request(request.node)
            self._requested[request.node] = None
            self.async_proposer.send(question)
        return True

    def _is_full(self) -> bool:
        """Whether no request can be sent before a reply comes."""
        return self.async_proposer is not None and len(self._requested) >= self.async_proposer.capacity

    def _record_reply(self, node: int, reply: Proposals) -> None:
        self.tree_search.propose(node, reply)
        self._silences = self._silences + 1 if reply.is_silent else 0
        if reply.exchanges:
            was_answered = any(exchange.reply for exchange in reply.exchanges)
            self._unanswered = 0 if was_answered else self._unanswered + 1

    def _predict(self) -> None:
        if self.forecaster is not None:
            self.forecaster.predict_next(self._is_over)

    def _try(self, attempt: Try) -> None:
        try:
            kernel = apply(self.tree_search.kernel(attempt.node), attempt.edit)
        except PatchError as error:
            self.tree_search.refuse(attempt, str(error))
            return
        node = self.tree_search.submit(attempt, kernel)
        if node is not None:
            self._unsubmitted.append(node)
            self._submit()

    def _submit(self) -> None:
        while self._unsubmitted:
            node = self._unsubmitted[0]
            self.executor.submit(node, self.tree_search.kernel(node))
            self._in_flight.add(self._unsubmitted.popleft())

    def _report_notes(self) -> None:
        """Pass on notes that the executor added while it is at work."""
        before, self._notes = self._notes, self.executor.notes
        new = [note for note in self._notes if note not in before]
        if new:
            best = replace(self._snapshot(self._tree.nodes[self._best]), note=" ".join(new))
            self.follow(best)

    def _collect_replies(self, timeout: float) -> None:
        if self.async_proposer is not None:
            self._unread_replies.extend(self.async_proposer.collect(0.0 if self._unread_replies else timeout))
            while self._unread_replies:
                node, reply = self._unread_replies[0]
                self._record_reply(node, reply)
                del self._requested[node]
                self._unread_replies.popleft()

    def _abandon_requests(self, stop_reason: StopReason | None) -> None:
        """Record the replies that are there, wait a little for those in flight, and record which never came."""
        self._collect_replies(0.0)
        deadline = time.monotonic() + (0.0 if stop_reason is StopReason.INTERRUPTED else REPLY_GRACE_SECONDS)
        while (
            self.expects_replies and (left := deadline - time.monotonic()) > 0 and not self.stop_requested()
        ):
            self._collect_replies(min(left, POLL_SECONDS))
        for node in tuple(self._requested):
            self.tree_search.propose(node, ABANDONED)
            del self._requested[node]

    def _drain(self, grace: float) -> None:
        deadline = time.monotonic() + grace
        while self._in_flight and (left := deadline - time.monotonic()) > 0:
            self.collect(left)

    def _record(self, node_id: int, evaluation: Evaluation) -> None:
        node = self._tree.nodes[node_id]
        parent = self._tree.nodes[node.parent].evaluation if node.parent is not None else None
        root = self._tree.nodes[0].evaluation or evaluation
        if evaluation.ok:
            against = flags_against(evaluation, parent) if parent is not None else ()
            notes = dict.fromkeys((*evaluation.flags, *against))
            if self.task.unverified_reference:
                notes[UNVERIFIED_REFERENCE] = None
            evaluation = replace(evaluation, flags=tuple(notes))
        self.tree_search.evaluate(node_id, evaluation, self.reward(evaluation, parent, root))
        self._unrecorded.popleft()
        self._in_flight.discard(node_id)
        self._outcomes[evaluation.outcome] += 1
        self.follow(self._snapshot(node))

    def _snapshot(self, node: Node) -> Snapshot:
        improved = node.id > 0 and is_improvement(node, self._tree.nodes[self._best])
        if improved:
            self._best = node.id
        best = self._tree.nodes[self._best]
        return Snapshot(
            budget=self.budget,
            evaluations=self.evaluations,
            outcomes=dict(self._outcomes.most_common()),
            best_node=best.id,
            best_speedup=valid_speedup(best),
            source=node.evaluation.source if node.evaluation else Source.MEASURED,
            elapsed_seconds=self.elapsed_seconds,
            dollars=self._tree.dollars,
            improved_by=edit_title(self._tree, node) if improved else "",
            unverified_reference=self.task.unverified_reference,
        )


def spent_seconds(events: Iterable[Event]) -> float:
    """Seconds that the processes of a run have spent on it, pauses between them left out."""
    total, began, last = 0.0, 0.0, 0.0
    for event in events:
        if began == 0.0 or isinstance(event, Resumed):
            total, began = total + last - began, event.at
        last = event.at
    return total + last - began


def root_failure(tree: Tree) -> str:
    """Why the starting kernel can't be searched from, in a sentence."""
    evaluation = tree.nodes[0].evaluation
    if evaluation is None:
        return "The starting kernel was not evaluated."
    reason = evaluation.message or evaluation.quarantine or "it has no time"
    kind = evaluation.outcome if evaluation.outcome is not Outcome.OK else "quarantined"
    return f"The starting kernel can't be searched from ({kind}): {reason}"
