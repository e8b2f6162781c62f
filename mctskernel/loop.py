"""The loop: select, propose, evaluate, reward, record; until the budget is spent.

`Search.run` is the whole of it. Two things can come next, and the tree's strategy selects which: a node needs edits,
and a proposer is asked for them; or an edit is tried, and the kernel that it makes is evaluated. What comes back is
rewarded and recorded: journalled first, then part of the tree. `choose` picks the answer in the end.
"""

from __future__ import annotations

import enum
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from mctskernel.answer import best_node, is_improvement, valid_speedup
from mctskernel.core.budget import Budget
from mctskernel.core.edit import Edit
from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.core.executor import Executor
from mctskernel.core.proposer import Dropped, Loss, Proposals, Proposer
from mctskernel.core.task import Task
from mctskernel.edits.async_proposer import AsyncProposer
from mctskernel.edits.patch import PatchError, apply
from mctskernel.evidence import request_of
from mctskernel.profiling.guardrails import flags_against
from mctskernel.profiling.reward import Reward, composite, is_eligible
from mctskernel.registry import in_use
from mctskernel.tasks.starts import are_evaluated, are_proposed, start_name, start_speedup, untried
from mctskernel.tree.node import UNTRIED, Node, Tree
from mctskernel.tree.search import TreeSearch
from mctskernel.tree.strategies.strategy import Action, Propose, Step
from mctskernel.tree.trajectory import edit_title

POLL_SECONDS = 0.1
"""How long to wait for a finished evaluation before looking at the clock and at Ctrl-C again."""

GRACE_SECONDS = 1.5
"""How long evaluations in flight may still finish once the search should stop: it ends within 2 s."""

REPLY_GRACE_SECONDS = 3.0  # how long replies in flight may still come when a search ends by itself

SILENCES = 3  # requests in a row without an answer after which the search ends; it can be resumed

VALIDATION_SHARE = 0.4  # the most of a budget of seconds that is kept for the final validation

VALIDATION_SECONDS, VALIDATION_EVALUATIONS = 3.0, 4.0
"""What the final validation is expected to take: new processes, and so many times the best kernel's evaluation."""


class StopReason(enum.StrEnum):
    """Why a search stopped."""

    BUDGET = "the budget is spent"
    PATIENCE = "nothing faster is found any more"
    EXHAUSTED = "nothing is left to try"
    SILENCE = "no model answers"
    WAITING = "answers are awaited"
    INTERRUPTED = "interrupted"
    NO_BASELINE = "the starting kernel has no valid time"


@dataclass(frozen=True)
class Snapshot:
    """The state of a search after an evaluation; `improved_by` names the edit when it is a new best.

    `best_speedup` is over the fastest start, and 1 until all of them were evaluated. `note` is what the executor says
    anew, and then nothing else has changed. `without_gain` counts evaluations since the best one. `validating` is how
    many seconds the final validation of `best_node` has taken so far.
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
    caveats: tuple[str, ...] = ()
    note: str = ""
    without_gain: int = 0
    validating: float | None = None

    @property
    def spent_fraction(self) -> float:
        """How much of the budget is spent, from 0 to 1, by whichever limit is nearest."""
        return self.budget.spent_fraction(self.evaluations, self.elapsed_seconds, self.dollars)


Follower = Callable[[Snapshot], None]

ABANDONED = Proposals((), dropped=(Dropped(Loss.NO_REPLY, "The search stopped before the reply came."),))
"""Recorded for a request whose reply is not waited for. Asked again, the proposer may have one."""


@dataclass
class Search:
    """What a search works with. `spent_seconds` were spent on the run before.

    `clock` counts seconds from an arbitrary moment. `choose` says what to do next in place of the tree's policy. An
    `async_proposer` is asked for edits in place of the proposer, and the search goes on meanwhile. `starts` are edits
    of the root that are tried before anything else. The `fingerprint` is the executor's. Edits that are `wanted`, by
    node and number, are tried next.
    """

    tree_search: TreeSearch
    task: Task
    proposer: Proposer
    executor: Executor
    budget: Budget
    follow: Follower = lambda _: None
    stop_requested: Callable[[], bool] = lambda: False
    reward: Reward = composite
    spent_seconds: float = 0.0
    clock: Callable[[], float] = time.monotonic
    choose: Callable[[], Action | None] | None = None
    async_proposer: AsyncProposer | None = None
    starts: tuple[Edit, ...] = ()
    fingerprint: Mapping[str, str] = field(default_factory=dict)
    wanted: deque[tuple[int, int]] = field(default_factory=deque)
    _began: float = field(init=False)
    _in_flight: set[int] = field(default_factory=set)
    # What waits for a step that may raise, for instance because the disk is full: the next `run` continues with it.
    _unsubmitted: deque[int] = field(default_factory=deque)
    _arrived: deque[tuple[int, Evaluation | Proposals]] = field(default_factory=deque)
    _silences: int = 0
    _unanswered: int = 0
    _outcomes: Counter[str] = field(default_factory=Counter)
    _best: int = 0
    _reported: int = 0
    _without_gain: int = 0
    _notes: tuple[str, ...] = ()
    _first: tuple[float, int] | None = None

    def __post_init__(self) -> None:
        self._notes = self.executor.notes
        self._began = self.clock()
        for node in map(self._tree.nodes.__getitem__, self._tree.evaluated):
            self._count(node)
        self._reported = self._best
        if self._is_out_of_patience():
            self._without_gain = 0  # a resumed search has its patience anew

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
            if before >= self.executor.capacity or self._stop_reason() is not None or not self._step():
                return False
        return True

    def collect(self, timeout: float) -> None:
        """Record what has come back, waiting up to `timeout` seconds for the first of it."""
        if not self._arrived:
            self._receive(timeout)
        while self._arrived:
            node, result = self._arrived[0]
            if isinstance(result, Evaluation):
                self._record(node, result)
            else:
                self._record_reply(node, result)
            self._arrived.popleft()

    @property
    def stop_reason(self) -> StopReason | None:
        """Why a search that can't begin another evaluation is over; None while something may come back in time."""
        stop_reason = self._stop_reason()
        if stop_reason is StopReason.INTERRUPTED or (stop_reason is StopReason.BUDGET and self._is_late):
            return stop_reason
        if self._in_flight or (stop_reason is None and self.expects_replies):
            return None
        return stop_reason or (
            StopReason.WAITING if self._tree.requested or self._is_full() else StopReason.EXHAUSTED
        )

    def end(self, stop_reason: StopReason, grace: float = GRACE_SECONDS) -> StopReason:
        """Let evaluations in flight finish for `grace` seconds, and record which replies never came."""
        if stop_reason is not StopReason.WAITING:
            # A result more, and no other, is worth waiting for where time is up.
            self._drain(min(grace, self._pace) if stop_reason is StopReason.BUDGET else grace)
            self._abandon_requests(stop_reason)
        return stop_reason

    @property
    def in_flight(self) -> int:
        """Evaluations that have begun and not come back."""
        return len(self._in_flight)

    @property
    def expects_replies(self) -> bool:
        """Whether waiting brings a reply."""
        return any(isinstance(result, Proposals) for _, result in self._arrived) or (
            self.async_proposer is not None and self.async_proposer.expects_replies
        )

    @property
    def has_baseline(self) -> bool:
        """Whether the starting kernel has a valid time."""
        root = self._tree.nodes[0].evaluation
        return root is not None and is_eligible(root)

    @property
    def validation_seconds(self) -> float:
        """Seconds of the budget that are kept for the final validation; none before the starting kernel has a time."""
        root, seconds = self._tree.nodes[0].evaluation, self.budget.seconds
        if seconds is None or root is None or root.source is Source.RECORDED:
            return 0.0
        best = self._tree.nodes[self._best].evaluation or root
        # Building goes on while processes start.
        evaluating = best.cost_seconds - best.stage_seconds.get("build", 0.0)
        expected = VALIDATION_SECONDS + VALIDATION_EVALUATIONS * evaluating
        return min(expected, VALIDATION_SHARE * seconds)

    @property
    def elapsed_seconds(self) -> float:
        """Seconds spent on the run, earlier processes included."""
        return self.spent_seconds + self.clock() - self._began

    @property
    def evaluations(self) -> int:
        """Evaluations that have finished."""
        return self._tree.evaluations

    @property
    def _pace(self) -> float:
        """Seconds between results, none before there are two: the first takes much longer than those after it."""
        if self._first is None or self.evaluations == self._first[1]:
            return 0.0
        return (self.elapsed_seconds - self._first[0]) / (self.evaluations - self._first[1])

    @property
    def _tree(self) -> Tree:
        return self.tree_search.tree

    def _stop_reason(self) -> StopReason | None:
        root = self._tree.nodes[0]
        if self.stop_requested():
            return StopReason.INTERRUPTED
        if root.evaluation is not None and not is_eligible(root.evaluation):
            return StopReason.NO_BASELINE
        elapsed, in_flight = self.elapsed_seconds, len(self._in_flight)
        # What is in flight takes its time too.
        expected = elapsed + in_flight * self._pace + self.validation_seconds
        left = self.budget.left(self.evaluations + in_flight, expected, self._tree.dollars)
        if 0 in (left.evaluations, left.seconds, left.dollars):
            return StopReason.BUDGET
        if self._is_out_of_patience():
            return StopReason.PATIENCE
        if self._silences >= SILENCES:
            return StopReason.SILENCE
        return StopReason.EXHAUSTED if self._tree.exhausted else None

    @property
    def _is_late(self) -> bool:
        """Whether the time is up but for the final validation: what is in flight stays unfinished."""
        root, seconds = self._tree.nodes[0].evaluation, self.budget.seconds
        if root is None or seconds is None:
            return False
        return self.elapsed_seconds + self.validation_seconds >= seconds

    def _is_out_of_patience(self) -> bool:
        return bool(self.budget.patience) and self._without_gain >= (self.budget.patience or 0)

    # Select

    def _step(self) -> bool:
        """Do what comes next; False if that is to wait."""
        with in_use("strategy", self._tree.policy.strategy):
            action = (self.choose or self._next_action)()
        match action:
            case Propose() as request:
                return self._request_edits(request)
            case Step() as step:
                self._try(step)
                return True
        return False

    def _next_action(self) -> Action | None:
        """What the tree's policy says, once the other starting points and what is wanted were tried."""
        root = self._tree.nodes[0]
        if self.starts and root.evaluation is not None:
            if not are_proposed(self._tree):
                # The proposer has other edits of the root.
                self.tree_search.propose(0, Proposals(self.starts, more=True))
            number = untried(self._tree)
            if number is not None:
                return Step(0, number)
        while self.wanted:
            node, number = self.wanted[0]
            if self._tree.nodes[node].fates[number] == UNTRIED:
                return Step(node, number)
            self.wanted.popleft()
        return self.tree_search.next_action()

    # Propose

    def _request_edits(self, request: Propose) -> bool:
        """Ask for edits of a node; False if as many requests wait for replies as can."""
        if self._is_full():
            return False
        if self.async_proposer is None:
            question = self.tree_search.proposal_request(request.node, self.task)
            self._record_reply(
                request.node, self.proposer.propose(replace(question, unanswered=self._unanswered))
            )
        else:
            question = request_of(self.tree_search, request.node, self.task, self.fingerprint)
            question = replace(question, unanswered=self._unanswered)
            self.tree_search.request(request.node)
            self.async_proposer.send(question)
        return True

    def _is_full(self) -> bool:
        """Whether no request can be sent before a reply comes."""
        return self.async_proposer is not None and len(self._tree.requested) >= self.async_proposer.capacity

    def _record_reply(self, node: int, reply: Proposals) -> None:
        self.tree_search.propose(node, reply)
        self._silences = self._silences + 1 if reply.is_silent else 0
        if reply.exchanges:
            was_answered = any(exchange.reply for exchange in reply.exchanges)
            self._unanswered = 0 if was_answered else self._unanswered + 1

    # Evaluate

    def _try(self, step: Step) -> None:
        edit = self.tree_search.edit(step.node, step.edit)
        try:
            kernel = apply(self.tree_search.kernel(step.node), edit)
        except PatchError as error:
            self.tree_search.refuse(step, str(error))
            return
        node = self.tree_search.submit(step, kernel)
        if node is not None:
            self._unsubmitted.append(node)
            self._submit()

    def _submit(self) -> None:
        while self._unsubmitted:
            node = self._unsubmitted[0]
            self.executor.submit(node, self.tree_search.kernel(node))
            self._in_flight.add(self._unsubmitted.popleft())

    def _receive(self, timeout: float) -> None:
        if self._in_flight:
            self._arrived.extend(self.executor.wait(timeout))
            self._report_notes()
        if self.async_proposer is not None:
            self._arrived.extend(self.async_proposer.collect(0.0 if self._in_flight else timeout))

    def _drain(self, grace: float) -> None:
        deadline = time.monotonic() + grace
        while self._in_flight and (left := deadline - time.monotonic()) > 0:
            self.collect(left)

    def _abandon_requests(self, stop_reason: StopReason) -> None:
        """Record the replies that are there, wait a little for those in flight, and record which never came."""
        deadline = time.monotonic() + (0.0 if stop_reason is StopReason.INTERRUPTED else REPLY_GRACE_SECONDS)
        self.collect(0.0)
        while (
            self.expects_replies and (left := deadline - time.monotonic()) > 0 and not self.stop_requested()
        ):
            self.collect(min(left, POLL_SECONDS))
        for node in tuple(self._tree.requested):
            self.tree_search.propose(node, ABANDONED)

    # Reward and record

    def _record(self, node_id: int, evaluation: Evaluation) -> None:
        node = self._tree.nodes[node_id]
        parent = self._tree.nodes[node.parent].evaluation if node.parent is not None else None
        root = self._tree.nodes[0].evaluation or evaluation
        if evaluation.ok:
            against = flags_against(evaluation, parent) if parent is not None else ()
            flags = dict.fromkeys((*evaluation.flags, *against, *self.task.caveats))
            evaluation = replace(evaluation, flags=tuple(flags))
        is_retimed = node.evaluation is not None
        if node_id == 0:
            root = evaluation
        self.tree_search.evaluate(node_id, evaluation, self.reward(evaluation, parent, root))
        self._in_flight.discard(node_id)
        if is_retimed:
            self._best = best_node(self._tree)
            return
        self._count(node)
        self._first = self._first or (self.elapsed_seconds, self.evaluations)
        if (start := start_name(self._tree, node_id)) and not is_eligible(evaluation):
            reason = evaluation.message or evaluation.quarantine
            self.say(f"The start '{start}' is left out ({evaluation.outcome}): {reason}")
        improved = ""
        if self._best != self._reported and self._knows_starts:
            self._reported, improved = self._best, edit_title(self._tree, self._tree.nodes[self._best])
        self.follow(replace(self._snapshot(node), improved_by=improved))

    def _count(self, node: Node) -> None:
        """Count a finished evaluation, which may be the best so far."""
        assert node.evaluation is not None  # noqa: S101 - it has finished
        self._outcomes[node.evaluation.outcome] += 1
        improved = is_improvement(node, self._tree.nodes[self._best])
        self._best = node.id if improved else self._best
        self._without_gain = 0 if improved or node.id == 0 else self._without_gain + 1

    @property
    def _knows_starts(self) -> bool:
        """Whether it is known which start is the fastest."""
        return (are_proposed(self._tree) or not self.starts) and are_evaluated(self._tree)

    def _snapshot(self, node: Node) -> Snapshot:
        return Snapshot(
            budget=self.budget,
            evaluations=self.evaluations,
            outcomes=dict(self._outcomes.most_common()),
            best_node=self._best,
            best_speedup=self._best_speedup,
            source=node.evaluation.source if node.evaluation else Source.MEASURED,
            elapsed_seconds=self.elapsed_seconds,
            dollars=self._tree.dollars,
            caveats=self.task.caveats,
            without_gain=self._without_gain,
        )

    @property
    def _best_speedup(self) -> float:
        speedup = valid_speedup(self._tree.nodes[self._best])
        return speedup / start_speedup(self._tree) if self._knows_starts else min(1.0, speedup)

    def say(self, note: str) -> None:
        """Pass a sentence on to those who follow the search."""
        self.follow(replace(self._snapshot(self._tree.nodes[self._best]), note=note))

    def say_validating(self, node: int, seconds: float) -> None:
        """Report to those who follow the search how long the final validation of a node has taken so far."""
        snapshot = self._snapshot(self._tree.nodes[self._best])
        self.follow(replace(snapshot, best_node=node, validating=seconds))

    def _report_notes(self) -> None:
        """Pass on notes that the executor added while it is at work."""
        before, self._notes = self._notes, self.executor.notes
        new = [note for note in self._notes if note not in before]
        if new:
            self.say(" ".join(new))


def root_failure(tree: Tree) -> str:
    """Return why the starting kernel can't be searched from, in a sentence."""
    evaluation = tree.nodes[0].evaluation
    if evaluation is None:
        return "The starting kernel was not evaluated."
    reason = evaluation.message or evaluation.quarantine or "it has no time"
    kind = evaluation.outcome if evaluation.outcome is not Outcome.OK else "quarantined"
    return f"The starting kernel can't be searched from ({kind}): {reason}"
