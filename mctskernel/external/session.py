"""Sessions: a run whose edits come from another program, through ask and tell.

    with open_session(Path("runs/x")) as session:
        for ask in session.ask(8):
            results = session.tell([Reply(node=ask.node, edits=think_about(ask))])

The engine chooses the nodes, and builds, verifies and times the edits: nothing in a reply changes a verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from mctskernel.answer import best_node, valid_speedup
from mctskernel.config import OUTSIDE, SearchConfig
from mctskernel.core.budget import Budget
from mctskernel.core.evaluation import Outcome
from mctskernel.core.executor import Executor
from mctskernel.core.proposer import ProposalRequest, Proposals
from mctskernel.core.task import Task
from mctskernel.edits.async_proposer import ExternalQueue
from mctskernel.edits.llm.experts import EDITS, Feedback
from mctskernel.edits.llm.prompt import ask_parts, ask_text
from mctskernel.evidence import request_of
from mctskernel.external.messages import (
    Ask,
    Reply,
    ReplyError,
    make_ask,
    proposals_of,
    written_proposals,
)
from mctskernel.loop import Follower, Search, StopReason
from mctskernel.problems.pytorch_timing import product_flops
from mctskernel.profiling.architecture import briefing_of
from mctskernel.run import RunFolder
from mctskernel.run.search import SearchResult, finish, new_run, open_search, reopen
from mctskernel.tasks.starts import start_speedup
from mctskernel.tree.blobs import put_edit
from mctskernel.tree.node import Tree
from mctskernel.tree.trajectory import edit_attempt, run_seconds

AT_ONCE = 8  # edits of a reply that are evaluated whatever else promises: their author wants to know


@dataclass(frozen=True)
class EditResult:
    """What became of an edit.

    `made` is the node of its kernel, None where it made none; `outcome` is None while the edit waits for its turn,
    which the search gives it when nothing promises more. `seconds` are of one run, the geometric mean over the shapes.
    `gain` is the parent's time over the node's, `speedup` that of the fastest start, and `over_best` that of the best
    kernel so far; 0 if unknown.
    """

    node: int
    title: str
    made: int | None
    outcome: Outcome | None
    seconds: float | None = None
    gain: float = 0.0
    speedup: float = 0.0
    over_best: float = 0.0
    message: str = ""


class Session:
    """A run that is open: `open_session` makes one."""

    def __init__(
        self, folder: RunFolder, search: Search, queue: ExternalQueue, unfinished: Iterable[int]
    ) -> None:
        self.folder = folder
        self.search = search
        self.stop_reason = StopReason.WAITING
        self._queue = queue
        self._unfinished = tuple(unfinished)
        self._device = device_sentences(search.fingerprint, search.task)

    @property
    def tree(self) -> Tree:
        return self.search.tree_search.tree

    @property
    def is_over(self) -> bool:
        """Whether the search has ended: the budget is spent, or nothing is left to try."""
        return self.stop_reason is not StopReason.WAITING

    def ask(self, count: int) -> tuple[Ask, ...]:
        """Return the nodes that need edits next, at the most so many; none when the search is over.

        Edits of earlier replies are evaluated first, where they promise more. Called again without a `tell`, it returns
        the same.
        """
        return tuple(make_ask(request, self._device) for request in self._requests(count))

    def ask_text(self, edits: int = EDITS) -> str | None:
        """Return the next node as a text with all that its answer needs, and how to answer; None without a node."""
        asked = self._next_request()
        return ask_text(asked[0], edits, asked[1]) if asked else None

    def ask_parts(self, answer: str, edits: int, *, elsewhere: bool) -> tuple[int, str, str] | None:
        """Return the next node, the text for all nodes and that about this one; `elsewhere`: what worked on others."""
        if (asked := self._next_request()) is None:
            return None
        request, device = asked
        request = request if elsewhere else replace(request, elsewhere=())
        return request.node, *ask_parts(request, edits, device, Feedback.DIAGNOSIS, answer)

    def _next_request(self) -> tuple[ProposalRequest, tuple[str, ...]] | None:
        """The next request with what the task's products take, and the device in sentences."""
        search, task, fingerprint = self.search.tree_search, self.search.task, self.search.fingerprint
        for request in self._requests(1):
            flops = product_flops(task)
            device = device_sentences(fingerprint, task, flops)
            return request_of(search, request.node, task, fingerprint, flops), device
        return None

    def tell(self, replies: Iterable[Reply]) -> tuple[EditResult, ...]:
        """Submit edits of nodes, asked for or not; evaluate until others are needed. Returns what became of each.

        Of each reply the `AT_ONCE` edits of the highest priors are evaluated before anything else.

        An edit that the node has already isn't tried again: its earlier result is returned. What can't be used of a
        `text` is rejected, and said in the next ask about the node. Raises ReplyError, and submits nothing, if a reply
        is of a node that doesn't exist or isn't evaluated yet.
        """
        replied = [(reply.node, self._proposals(reply)) for reply in replies]
        known = {node: set(self.tree.nodes[node].untried) for node, _ in replied}
        for node, proposals in replied:
            asked = any(request.node == node for request in self._queue.requests)
            take = self._queue.answer if asked else self.search.tree_search.propose
            take(node, proposals)
        self.search.collect(0.0)
        for node, earlier in known.items():
            new = [number for number in self.tree.nodes[node].untried if number not in earlier]
            self.search.wanted.extend((node, number) for number in new[:AT_ONCE])
        self._run(len(self._queue.requests))
        return tuple(result for node, proposals in replied for result in self._results(node, proposals))

    def finish(self) -> SearchResult:
        """Validate the fastest kernel and save the answer, as at the end of any search."""
        return finish(self.folder, self.search, self.stop_reason)

    def _requests(self, count: int) -> tuple[ProposalRequest, ...]:
        if len(self._queue.requests) < count:
            self._run(count)
        return self._queue.requests[:count]

    def _proposals(self, reply: Reply) -> Proposals:
        nodes = self.tree.nodes
        if not 0 <= reply.node < len(nodes):
            raise ReplyError(f"There is no node {reply.node}: the run has {len(nodes)}, counted from 0.")
        if nodes[reply.node].evaluation is None:
            raise ReplyError(
                f"Node {reply.node} isn't evaluated yet: propose edits of it when it is asked for."
            )
        read = proposals_of(reply)
        if reply.text is None:
            return read
        written = written_proposals(reply.text, self.search.tree_search.kernel(reply.node), reply.proposer)
        return replace(written, edits=(*read.edits, *written.edits), dollars=reply.dollars)

    def _run(self, capacity: int) -> None:
        self._queue.capacity = capacity
        unfinished, self._unfinished = self._unfinished, ()
        self.stop_reason = self.search.run(unfinished)
        if self.is_over:
            self._queue.clear()

    def _results(self, node: int, proposals: Proposals) -> Iterator[EditResult]:
        """What became of the edits of a reply, and of what couldn't be used of it."""
        numbers: dict[str, int] = {}
        for number, record in enumerate(self.tree.nodes[node].edits):
            numbers.setdefault(record.change, number)
        for edit in proposals.edits:
            yield edit_result(self.tree, node, numbers[put_edit(self.folder.blobs, edit).change])
        for each in proposals.dropped:
            yield EditResult(node, str(each.loss), None, Outcome.REJECTED, message=each.reason)


@contextmanager
def begin_session(
    path: Path,
    task_folder: Path,
    configuration: SearchConfig,
    follow: Follower = lambda _: None,
    stop_requested: Callable[[], bool] = lambda: False,
) -> Iterator[Session]:
    """Make a new run whose edits come from outside, and open it. Raises what `run.search.begin` raises."""
    configuration = msgspec.structs.replace(configuration, proposer=OUTSIDE, llm=None, mixture=None)
    with (
        new_run(path, task_folder, configuration) as (folder, executor),
        _session(folder, configuration, executor, follow, stop_requested) as session,
    ):
        yield session


@contextmanager
def open_session(
    path: Path,
    budget: Budget | None = None,
    workers: int | None = None,
    follow: Follower = lambda _: None,
    stop_requested: Callable[[], bool] = lambda: False,
) -> Iterator[Session]:
    """Open a run, with another budget if one is given. Raises RunError and DeviceError."""
    with (
        reopen(path, budget, workers) as (folder, configuration, executor),
        _session(folder, configuration, executor, follow, stop_requested) as session,
    ):
        yield session


@contextmanager
def _session(
    folder: RunFolder,
    configuration: SearchConfig,
    executor: Executor,
    follow: Follower,
    stop_requested: Callable[[], bool],
) -> Iterator[Session]:
    queue = ExternalQueue(0)
    opening = open_search(folder, configuration, executor, follow, stop_requested, async_proposer=queue)
    with opening as (search, unfinished):
        yield Session(folder, search, queue, unfinished)


def device_sentences(
    fingerprint: Mapping[str, str], task: Task, flops: Mapping[str, float] | None = None
) -> tuple[str, ...]:
    """Return the device that evaluates a run's kernels, in sentences; `flops` are those of its products, by shape."""
    return briefing_of(fingerprint.get("gpu", ""), fingerprint.get("architecture", ""), task, flops or {})


def edit_result(tree: Tree, number: int, edit: int) -> EditResult:
    """Return what became of an edit of a node."""
    node, attempt = tree.nodes[number], edit_attempt(tree, tree.nodes[number], edit)
    title, fate = node.edits[edit].title, node.fates[edit]
    if attempt is None:
        return EditResult(number, title, fate.node, None)
    result = EditResult(number, title, fate.node, attempt.outcome, message=attempt.message)
    made = tree.nodes[fate.node] if fate.node is not None and not fate.duplicate else None
    if made is None or made.evaluation is None or made.score is None:
        return result
    speedup, best = made.score.speedup, valid_speedup(tree.nodes[best_node(tree)])
    return replace(
        result,
        seconds=run_seconds(made.evaluation),
        gain=attempt.gain,
        speedup=speedup / start_speedup(tree),
        over_best=speedup / best if best > 0 else 0.0,
    )
