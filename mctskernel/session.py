"""Sessions: a run whose edits come from another program, which asks for nodes and tells edits.

    with open_session(Path("runs/x")) as session:
        for ask in session.ask(8):
            results = session.tell([Reply(node=ask.node, edits=think_about(ask))])

The engine chooses the nodes, and builds, verifies and times what it is told: nothing told changes a verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from mctskernel.asks import Ask, Reply, ReplyError, make_ask, proposals_of
from mctskernel.core.evaluation import Outcome
from mctskernel.core.executor import Executor
from mctskernel.core.task import Task
from mctskernel.correspondence import Mailbox
from mctskernel.opening import open_search, reopen
from mctskernel.profiling.briefing import briefing_of
from mctskernel.proposers import OUTSIDE
from mctskernel.run import Budget, Configuration, RunFolder
from mctskernel.runner import Conclusion, conclude, new_run, remembered
from mctskernel.search import Ending, Follower, Search
from mctskernel.tree.blobs import put_edit
from mctskernel.tree.node import Tree
from mctskernel.tree.strategies.strategy import Propose


class Told(msgspec.Struct, frozen=True):
    """What became of an edit that was told.

    `made` is the node of its kernel, None where it made none; `outcome` is None while the edit waits for its turn,
    which the search gives it when nothing promises more. `gain` is the parent's time over the node's and `speedup`
    that of the starting kernel, 0 if unknown.
    """

    node: int
    title: str
    made: int | None
    outcome: Outcome | None
    gain: float = 0.0
    speedup: float = 0.0
    message: str = ""


class Session:
    """A run that is open: `open_session` makes one."""

    def __init__(
        self,
        folder: RunFolder,
        configuration: Configuration,
        search: Search,
        mailbox: Mailbox,
        unfinished: Iterable[int],
    ) -> None:
        self.folder = folder
        self.search = search
        self.ending = Ending.WAITING
        self._configuration = configuration
        self._mailbox = mailbox
        self._unfinished = tuple(unfinished)
        self._device = device_sentences(search.executor.fingerprint(), search.task)

    @property
    def tree(self) -> Tree:
        """Everything that is known."""
        return self.search.tree_search.tree

    @property
    def remaining(self) -> Budget:
        """What is left of the budget."""
        search = self.search
        return self._configuration.budget.left(search.evaluations, search.elapsed_seconds, self.tree.dollars)

    @property
    def is_over(self) -> bool:
        """Whether the search has ended, for want of budget or of anything to try."""
        return self.ending is not Ending.WAITING

    def ask(self, count: int) -> tuple[Ask, ...]:
        """The nodes that need edits next, at the most so many; none when the search is over.

        Edits that were told before are evaluated first, where they promise more. Asked again without being told
        anything, it says the same.
        """
        if len(self._mailbox.requests) < count:
            self._run(count)
        return tuple(make_ask(request, self._device) for request in self._mailbox.requests[:count])

    def tell(self, replies: Iterable[Reply]) -> tuple[Told, ...]:
        """Edits of nodes, asked for or not, and what became of each. Evaluates until other edits are wanted.

        An edit that the node was told before isn't tried again: what became of it then is said again. Raises
        ReplyError, and nothing is told, if one is of a node that doesn't exist or isn't evaluated yet.
        """
        told = tuple(replies)
        for reply in told:
            self._check(reply)
        for reply in told:
            self._take(reply)
        self._run(len(self._mailbox.requests))
        return tuple(
            told_of(self.tree, reply.node, number) for reply in told for number in self._numbers(reply)
        )

    def conclude(self) -> Conclusion:
        """Pass the fastest kernel through the last gate and write it down, as the end of any search does."""
        return remembered(conclude(self.folder, self.search, self.ending), self._configuration)

    def _run(self, capacity: int) -> None:
        self._mailbox.capacity = capacity
        unfinished, self._unfinished = self._unfinished, ()
        self.ending = self.search.run(unfinished)
        if self.is_over:
            self._mailbox.clear()

    def _check(self, reply: Reply) -> None:
        nodes = self.tree.nodes
        if not 0 <= reply.node < len(nodes):
            raise ReplyError(f"There is no node {reply.node}: the run has {len(nodes)}, counted from 0.")
        if nodes[reply.node].evidence is None:
            raise ReplyError(f"Node {reply.node} isn't evaluated yet: tell edits of it when it is asked for.")

    def _numbers(self, reply: Reply) -> list[int]:
        """Which of its node's edits those of a reply are."""
        numbers: dict[str, int] = {}
        for number, edit in enumerate(self.tree.nodes[reply.node].edits):
            numbers.setdefault(edit.change, number)
        return [numbers[put_edit(self.folder.blobs, edit).change] for edit in proposals_of(reply).edits]

    def _take(self, reply: Reply) -> None:
        proposals = proposals_of(reply)
        if reply.node in {request.node for request in self._mailbox.requests}:
            self._mailbox.answer(reply.node, proposals)
        else:
            self.search.tree_search.proposed(Propose(tuple(self.tree.lineage(reply.node))), proposals)


@contextmanager
def begin_session(
    path: Path,
    task_folder: Path,
    configuration: Configuration,
    follow: Follower = lambda _: None,
    stop_requested: Callable[[], bool] = lambda: False,
) -> Iterator[Session]:
    """Make a new run whose edits come from outside, and open it for asking and telling.

    Raises what `runner.begin` raises.
    """
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
    """Open a run for asking and telling, with another budget if one is given.

    Raises RunError, JournalError and DeviceError as resuming it does.
    """
    with (
        reopen(path, budget, workers) as (folder, configuration, executor),
        _session(folder, configuration, executor, follow, stop_requested) as session,
    ):
        yield session


@contextmanager
def _session(
    folder: RunFolder,
    configuration: Configuration,
    executor: Executor,
    follow: Follower,
    stop_requested: Callable[[], bool],
) -> Iterator[Session]:
    mailbox = Mailbox(0)
    opening = open_search(folder, configuration, executor, follow, stop_requested, correspondence=mailbox)
    with opening as (search, unfinished):
        yield Session(folder, configuration, search, mailbox, unfinished)


def device_sentences(fingerprint: Mapping[str, str], task: Task) -> tuple[str, ...]:
    """What a proposer is told of the device that a run's kernels are judged on."""
    return briefing_of(fingerprint.get("gpu", ""), fingerprint.get("architecture", ""), task)


def told_of(tree: Tree, number: int, edit: int) -> Told:
    """What became of an edit of a node."""
    node = tree.nodes[number]
    title, fate = node.edits[edit].title, node.fates[edit]
    if fate.reason:
        return Told(number, title, None, Outcome.REJECTED, message=fate.reason)
    made = tree.nodes[fate.node] if fate.node is not None else None
    if made is None or made.evaluation is None or made.score is None or node.score is None:
        return Told(number, title, fate.node, None)
    if fate.duplicate:
        message = f"The same kernel as node {made.id}, which was: {made.evaluation.outcome}."
        return Told(number, title, made.id, Outcome.DUPLICATE, message=message)
    gain = made.score.speedup / node.score.speedup if node.score.speedup > 0 else 0.0
    return Told(
        number, title, made.id, made.evaluation.outcome, gain, made.score.speedup, made.evaluation.message
    )
