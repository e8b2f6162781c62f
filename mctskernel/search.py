"""The loop: ask, propose, evaluate, score, tell, record; until the budget is spent."""

from __future__ import annotations

import enum
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from mctskernel.answer import believed_speedup, is_improvement
from mctskernel.core.edit import Edit
from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.core.executor import Executor
from mctskernel.core.proposer import Dropped, Loss, Proposals, Proposer
from mctskernel.core.task import UNANCHORED, Task
from mctskernel.correspondence import Correspondence
from mctskernel.edits.patch import PatchError, apply
from mctskernel.forecast import Forecaster
from mctskernel.profiling.guardrails import flags
from mctskernel.profiling.reward import Reward, composite, is_eligible
from mctskernel.rollouts import Rollouts
from mctskernel.run import Budget
from mctskernel.starts import are_told, told, untried
from mctskernel.tree.events import Event, Resumed
from mctskernel.tree.node import Node, Tree
from mctskernel.tree.search import Request, TreeSearch, Try
from mctskernel.tree.strategies.strategy import Propose
from mctskernel.tree.trajectory import edit_title

POLL_SECONDS = 0.1
"""How long to wait for a finished evaluation before looking at the clock and at Ctrl-C again."""

GRACE_SECONDS = 1.5
"""How long evaluations in flight may still finish once the search has been told to stop: it ends within 2 s."""

REPLY_GRACE_SECONDS = 3.0
"""How long replies in flight may still come when a search ends by itself."""

SILENCES = 3
"""Nodes in a row that a proposer is asked about without an answer, before the search ends: it can be resumed."""


class Ending(enum.StrEnum):
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

    `remark` is what the executor says anew, and then nothing else has changed.
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
    unanchored: bool = False
    remark: str = ""

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
"""What is written down of a request whose reply nobody waits for. Asked again, it may have one."""


@dataclass
class Search:
    """What a search works with. `spent_evaluations` and `spent_seconds` were spent on the run before.

    `clock` counts seconds, from whatever moment. `ask` says what to do next in place of the tree's policy; `forecaster`
    predicts what the policy may try next, `rollouts` what may follow each node. With a `correspondence` it is asked for
    edits, in place of the proposer, and the search goes on meanwhile. `starts` are edits of the root that are tried
    before anything else.
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
    ask: Callable[[], Request] | None = None
    forecaster: Forecaster | None = None
    rollouts: Rollouts | None = None
    correspondence: Correspondence | None = None
    starts: tuple[Edit, ...] = ()
    _began: float = field(init=False)
    _in_flight: set[int] = field(default_factory=set)
    # What waits for a step that may raise, as when a journal can't be written: the next `run` takes it up again.
    _unsubmitted: deque[int] = field(default_factory=deque)
    _untold: deque[tuple[int, Evaluation]] = field(default_factory=deque)
    _unheard: deque[tuple[int, Proposals]] = field(default_factory=deque)
    _asked: dict[int, Propose] = field(default_factory=dict)
    _silences: int = 0
    _unanswered: int = 0
    _outcomes: Counter[str] = field(default_factory=Counter)
    _best: int = 0
    _remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._remarks = self.executor.remarks
        self._began = self.clock()
        self._recall()

    def run(self, unfinished: Iterable[int] = ()) -> Ending:
        """Evaluate the unfinished nodes, then search until the budget is spent. Resumable at any moment.

        A search that waits for answers from outside goes on where it was when this is called again, and so does one
        that could not write its journal, or read a kernel, once that is mended. Who conducts several searches at a time
        calls what this is made of.
        """
        self.begin(unfinished)
        while True:
            while self.submit_next():
                pass
            ending = self.ending
            if ending is not None:
                return self.end(ending)
            self.collect(POLL_SECONDS)

    def begin(self, unfinished: Iterable[int] = ()) -> None:
        """Begin the evaluation of the unfinished nodes, however many there are."""
        self._unsubmitted.extend(unfinished)
        self._submit()

    def submit_next(self) -> bool:
        """Begin one more evaluation; False where none can begin before something comes back, or the search is over."""
        before = self.in_flight
        while self.in_flight == before:
            if before >= self.executor.capacity or self._is_over():
                return False
            self._predict()
            if self._is_over() or not self._step():
                return False
        return True

    def collect(self, timeout: float) -> None:
        """Take in what has come back, waiting up to `timeout` seconds for the first of it."""
        if self._in_flight and not self._untold:
            self._untold.extend(self.executor.wait(timeout))
            self._pass_on_remarks()
        while self._untold:
            self._tell(*self._untold[0])
        self._collect_replies(0.0 if self._in_flight else timeout)

    @property
    def ending(self) -> Ending | None:
        """Why it is over, for a search that can't begin another evaluation; None while something may come back."""
        ending = self._ending()
        if ending is Ending.INTERRUPTED:
            return ending
        if self._in_flight or (ending is None and self.expects_replies):
            return None
        return ending or (Ending.WAITING if self._asked or self._is_full() else Ending.EXHAUSTED)

    def end(self, ending: Ending, grace: float = GRACE_SECONDS) -> Ending:
        """Let evaluations in flight finish for `grace` seconds, and write down which replies never came."""
        if ending is not Ending.WAITING:
            self._drain(grace)
            self._take_leave(ending)
        return ending

    @property
    def in_flight(self) -> int:
        """Evaluations that have begun and not come back."""
        return len(self._in_flight)

    @property
    def expects_replies(self) -> bool:
        """Whether a reply comes if one waits for it."""
        return bool(self._unheard) or (
            self.correspondence is not None and self.correspondence.expects_replies
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

    def _recall(self) -> None:
        for node in self._tree.nodes:
            if node.evaluation is not None:
                self._outcomes[node.evaluation.outcome] += 1
                if is_improvement(node, self._tree.nodes[self._best]):
                    self._best = node.id

    def _ending(self) -> Ending | None:
        root = self._tree.nodes[0]
        if self.stop_requested():
            return Ending.INTERRUPTED
        if root.evaluation is not None and not is_eligible(root.evaluation):
            return Ending.NO_BASELINE
        limits = (
            (self.evaluations + len(self._in_flight), self.budget.evaluations),
            (self.elapsed_seconds, self.budget.seconds),
            (self._tree.dollars, self.budget.dollars),
        )
        if any(limit is not None and spent >= limit for spent, limit in limits):
            return Ending.BUDGET
        if self._silences >= SILENCES:
            return Ending.SILENCE
        return Ending.EXHAUSTED if self._tree.exhausted else None

    def _is_over(self) -> bool:
        return self._ending() is not None

    def _step(self) -> bool:
        """Do what comes next; False if that is to wait."""
        match (self.ask or self._ask)():
            case Propose() as request:
                return self._request_edits(request)
            case Try() as attempt:
                self._try(attempt)
                return True
        return False

    def _ask(self) -> Request:
        """What the tree says, once the other starting points were tried."""
        root = self._tree.nodes[0]
        if self.starts and root.evaluation is not None:
            if not are_told(self._tree):
                self.tree_search.proposed(Propose((0,)), told(self.starts))
            number = untried(self._tree)
            if number is not None:
                return Try((0,), number, self.tree_search.edit(0, number))
        return self.tree_search.ask()

    def _request_edits(self, request: Propose) -> bool:
        """Ask for edits of a node; False if as many requests wait for replies as can."""
        if self._is_full():
            return False
        correspondence = self.correspondence
        question = self.tree_search.proposal_request(request, self.task)
        question = replace(question, unanswered=self._unanswered)
        if correspondence is None:
            self._hear(request, self.proposer.propose(question))
        else:
            self.tree_search.asked(request)
            self._asked[request.node] = request
            correspondence.send(question)
        return True

    def _is_full(self) -> bool:
        """Whether nobody can be asked before a reply comes."""
        return self.correspondence is not None and len(self._asked) >= self.correspondence.capacity

    def _hear(self, request: Propose, reply: Proposals) -> None:
        self.tree_search.proposed(request, reply)
        self._silences = self._silences + 1 if reply.is_silent else 0
        if reply.exchanges:
            was_answered = any(exchange.reply for exchange in reply.exchanges)
            self._unanswered = 0 if was_answered else self._unanswered + 1

    def _predict(self) -> None:
        if self.rollouts is not None:
            self.rollouts.catch_up(self._is_over)
        if self.forecaster is not None:
            self.forecaster.look_ahead(self.executor.capacity, self._is_over)

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

    def _pass_on_remarks(self) -> None:
        """What the executor says while it is at work: that it waits for a server, say."""
        before, self._remarks = self._remarks, self.executor.remarks
        new = [remark for remark in self._remarks if remark not in before]
        if new:
            best = replace(self._snapshot(self._tree.nodes[self._best]), remark=" ".join(new))
            self.follow(best)

    def _collect_replies(self, timeout: float) -> None:
        if self.correspondence is not None:
            self._unheard.extend(self.correspondence.collect(0.0 if self._unheard else timeout))
            while self._unheard:
                node, reply = self._unheard[0]
                self._hear(self._asked[node], reply)
                del self._asked[node]
                self._unheard.popleft()

    def _take_leave(self, ending: Ending | None) -> None:
        """Hear the replies that are there, wait a little for those in flight, and write down which never came."""
        self._collect_replies(0.0)
        deadline = time.monotonic() + (0.0 if ending is Ending.INTERRUPTED else REPLY_GRACE_SECONDS)
        while (
            self.expects_replies and (left := deadline - time.monotonic()) > 0 and not self.stop_requested()
        ):
            self._collect_replies(min(left, POLL_SECONDS))
        for node, request in tuple(self._asked.items()):
            self.tree_search.proposed(request, ABANDONED)
            del self._asked[node]

    def _drain(self, grace: float) -> None:
        deadline = time.monotonic() + grace
        while self._in_flight and (left := deadline - time.monotonic()) > 0:
            self.collect(left)

    def _tell(self, node_id: int, evaluation: Evaluation) -> None:
        node = self._tree.nodes[node_id]
        parent = self._tree.nodes[node.parent].evaluation if node.parent is not None else None
        root = self._tree.nodes[0].evaluation or evaluation
        if evaluation.ok:
            remarks = dict.fromkeys((*evaluation.flags, *flags(evaluation, parent)))
            if self.task.unanchored:
                remarks[UNANCHORED] = None
            evaluation = replace(evaluation, flags=tuple(remarks))
        self.tree_search.evaluated(node_id, evaluation, self.reward(evaluation, parent, root))
        self._untold.popleft()
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
            best_speedup=believed_speedup(best),
            source=node.evaluation.source if node.evaluation else Source.MEASURED,
            elapsed_seconds=self.elapsed_seconds,
            dollars=self._tree.dollars,
            improved_by=edit_title(self._tree, node) if improved else "",
            unanchored=self.task.unanchored,
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
