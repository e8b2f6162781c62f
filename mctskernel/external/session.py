"""Sessions: a run whose edits come from another program, through ask and tell.

    with open_session(Path("runs/x")) as session:
        for ask in session.ask(8):
            results = session.tell([Reply(node=ask.node, edits=think_about(ask))])

The engine chooses the nodes, and builds, verifies and times the edits: nothing in a reply changes a verdict.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec

from mctskernel.answer import best_node, valid_speedup
from mctskernel.config import OUTSIDE, SearchConfig
from mctskernel.core.budget import Budget
from mctskernel.core.contract_words import contract_sentences
from mctskernel.core.documents import UNDECODABLE, excerpt
from mctskernel.core.edit import Block, Category, Edit, Patch, WholeSource
from mctskernel.core.evaluation import Cause, Outcome, Source
from mctskernel.core.executor import Executor
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.proposer import Attempt, Dropped, ProposalRequest, Proposals
from mctskernel.core.task import Task
from mctskernel.core.user_errors import MisuseError
from mctskernel.edits.async_proposer import ExternalQueue
from mctskernel.edits.llm.experts import EDITS, Feedback
from mctskernel.edits.llm.prompt import ask_parts, ask_text, language_rules, reference_text
from mctskernel.edits.llm.replies import read_reply
from mctskernel.evidence import request_of
from mctskernel.loop import Follower, Search, StopReason
from mctskernel.problems.pytorch_timing import product_flops
from mctskernel.profiling.architecture import briefing_of
from mctskernel.run import RunFolder
from mctskernel.run.search import SearchResult, finish, new_run, open_search, reopen
from mctskernel.tasks.starts import start_speedup
from mctskernel.tree.blobs import put_edit
from mctskernel.tree.node import Tree
from mctskernel.tree.trajectory import edit_attempt, run_seconds


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
        """The nodes that need edits next, at the most so many; none when the search is over.

        Edits of earlier replies are evaluated first, where they promise more. Called again without a `tell`, it returns
        the same.
        """
        return tuple(make_ask(request, self._device) for request in self._requests(count))

    def ask_texts(self, count: int, edits: int = EDITS) -> tuple[str, ...]:
        """The same nodes as `ask`, each as a text that has all that a writer of kernels needs, and how to answer."""
        return tuple(ask_text(request, edits, device) for request, device in self._told_requests(count))

    def ask_parts(
        self, answer: str, edits: int = EDITS, *, elsewhere: bool = True
    ) -> tuple[int, str, str] | None:
        """The next node, the text for all nodes, and the text about this one; `elsewhere`: what worked on others."""
        for request, device in self._told_requests(1):
            known = request if elsewhere else replace(request, elsewhere=())
            return known.node, *ask_parts(known, edits, device, Feedback.DIAGNOSIS, answer)
        return None

    def _told_requests(self, count: int) -> Iterator[tuple[ProposalRequest, tuple[str, ...]]]:
        """Requests with what the task's products take, and the device in sentences."""
        search, task, fingerprint = self.search.tree_search, self.search.task, self.search.fingerprint
        for request in self._requests(count):
            flops = product_flops(task)
            device = device_sentences(fingerprint, task, flops)
            yield request_of(search, request.node, task, fingerprint, flops), device

    def tell(self, replies: Iterable[Reply]) -> tuple[EditResult, ...]:
        """Submit edits of nodes, asked for or not; evaluate until others are needed. Returns what became of each.

        Of each reply the `AT_ONCE` edits of the highest priors are evaluated before anything else.

        An edit that the node has already isn't tried again: its earlier result is returned. What can't be used of a
        `text` is rejected, and said in the next ask about the node. Raises ReplyError, and submits nothing, if a reply
        is of a node that doesn't exist or isn't evaluated yet.
        """
        told = [(reply.node, self._proposals(reply)) for reply in replies]
        known = {node: set(self.tree.nodes[node].untried) for node, _ in told}
        for node, proposals in told:
            asked = any(request.node == node for request in self._queue.requests)
            take = self._queue.answer if asked else self.search.tree_search.propose
            take(node, proposals)
        self.search.collect(0.0)
        for node, earlier in known.items():
            new = [number for number in self.tree.nodes[node].untried if number not in earlier]
            self.search.wanted.extend((node, number) for number in new[:AT_ONCE])
        self._run(len(self._queue.requests))
        return tuple(result for node, proposals in told for result in self._results(node, proposals))

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
    """The device that evaluates a run's kernels, in sentences; `flops` are those of its products, by shape."""
    return briefing_of(fingerprint.get("gpu", ""), fingerprint.get("architecture", ""), task, flops or {})


def edit_result(tree: Tree, number: int, edit: int) -> EditResult:
    """What became of an edit of a node."""
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


VERSION = 1

LONGEST_LOG = 8000  # characters of a compiler's log that an ask carries: the first errors say what is wrong

LONGEST_SOURCE = 1_000_000  # characters of a text in a reply

AT_ONCE = 8  # edits of a reply that are evaluated whatever else promises: their author wants to know

MOST_EDITS = 16  # edits that are taken from a text


class ReplyError(MisuseError, ValueError):
    """Replies that can't be read; the message is a sentence that says which line, and what is wrong."""


class AskedTensor(msgspec.Struct, frozen=True):
    """An input or output; extents are numbers or expressions over the dimensions of a shape."""

    name: str
    dtype: str
    extents: tuple[int | str, ...]


class AskedTask(msgspec.Struct, frozen=True):
    """What is computed. Kernels are timed at `search_shapes`, and verified there, at `verify_shapes` and others.

    `rules` say how a kernel of the language is written, with its launch plan; `device` what the GPU can do, and the
    least time that the task takes on it. The tolerances are of outputs that have none of their own; `numerics` says in
    sentences what each result may be, and what NaN, infinities and the like come to. `caveats` are
    sentences that stand beside every speed-up, such as that a model wrote the reference.
    """

    name: str
    summary: str
    reference: str
    inputs: tuple[AskedTensor, ...]
    outputs: tuple[AskedTensor, ...]
    scalars: dict[str, float]
    search_shapes: tuple[dict[str, int], ...]
    verify_shapes: tuple[dict[str, int], ...]
    relative_tolerance: float
    absolute_tolerance: float
    rules: str
    device: tuple[str, ...]
    caveats: tuple[str, ...] = ()
    numerics: tuple[str, ...] = ()


class AskedEvidence(msgspec.Struct, frozen=True):
    """The result of the node's kernel.

    `seconds` is of one run, the geometric mean over the search shapes, null where it has no valid time; `numbers` says
    whether that was measured or modelled. `speedup` is over the fastest start, `best_speedup` that of the fastest
    kernel so far. A kernel that failed is to be repaired: `message` and `log` say what is wrong.
    """

    outcome: Outcome
    numbers: Source
    message: str
    log: str
    seconds: float | None
    speedup: float
    best_speedup: float
    causes: tuple[Cause, ...]
    explanation: str


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A node that needs edits, with its evidence.

    `lineage` are the edits that made its kernel from the starting kernel, `siblings` edits of this kernel that were
    tried before (don't repeat them), `beside` other edits of the kernels that led to it, `elsewhere` those that gained
    most elsewhere in the tree; `lost` says what couldn't be used of the latest replies, and `standing` how the starts
    and the fastest kernel stand.
    """

    version: int = VERSION
    node: int
    language: Language
    source: str
    task: AskedTask
    evidence: AskedEvidence
    lineage: tuple[Attempt, ...] = ()
    siblings: tuple[Attempt, ...] = ()
    elsewhere: tuple[Attempt, ...] = ()
    beside: tuple[Attempt, ...] = ()
    lost: tuple[str, ...] = ()
    standing: tuple[str, ...] = ()


_Text = Annotated[str, msgspec.Meta(max_length=LONGEST_SOURCE)]
_Line = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
_Paragraph = Annotated[str, msgspec.Meta(max_length=4000)]


class RepliedBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Text that occurs exactly once in the source, and what takes its place."""

    search: Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_SOURCE)]
    replace: _Text


class RepliedEdit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A change of the node's kernel: a new `source` or a `patch`; `prior` is its promise beside the reply's others."""

    title: _Line
    category: Category = Category.ALGORITHM
    rationale: _Paragraph = ""
    expected_effect: _Paragraph = ""
    prior: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 1.0
    source: _Text | None = None
    patch: Annotated[tuple[RepliedBlock, ...], msgspec.Meta(max_length=100)] | None = None

    def __post_init__(self) -> None:
        if (self.source is None) == (self.patch is None):
            raise ValueError("an edit has either a source or a patch")


class Reply(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Edits of a node and their cost in `dollars`; a `text`, the answer to an `ask --text`, holds further edits."""

    node: Annotated[int, msgspec.Meta(ge=0)]
    edits: Annotated[tuple[RepliedEdit, ...], msgspec.Meta(max_length=100)] | None = None
    text: _Text | None = None
    proposer: _Line = "outside"
    dollars: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.0
    version: int = VERSION

    def __post_init__(self) -> None:
        if self.edits is None and self.text is None:
            raise ValueError("a reply has `edits` or a `text`")


def make_ask(request: ProposalRequest, device: tuple[str, ...] = ()) -> Ask:
    """The ask of a request, with what is known of the device in sentences."""
    evaluation = request.evaluation
    diagnosis = evaluation.diagnosis
    evidence = AskedEvidence(
        outcome=evaluation.outcome,
        numbers=evaluation.source,
        message=evaluation.message,
        log=evaluation.log[:LONGEST_LOG],
        seconds=run_seconds(evaluation),
        speedup=request.speedup,
        best_speedup=request.best_speedup,
        causes=diagnosis.causes if diagnosis else (),
        explanation=diagnosis.explanation if diagnosis else "",
    )
    return Ask(
        node=request.node,
        language=request.kernel.language,
        source=request.kernel.source,
        task=asked_task(request.task, device),
        evidence=evidence,
        lineage=request.lineage,
        siblings=request.siblings,
        elsewhere=request.elsewhere,
        beside=request.beside,
        lost=request.lost,
        standing=request.standing,
    )


def asked_task(task: Task, device: tuple[str, ...] = ()) -> AskedTask:
    return AskedTask(
        name=task.name,
        summary=task.summary,
        reference=reference_text(task),
        inputs=tuple(AskedTensor(each.name, each.dtype, each.shape) for each in task.inputs),
        outputs=tuple(AskedTensor(each.name, each.dtype, each.shape) for each in task.outputs),
        scalars=dict(task.scalars),
        search_shapes=tuple(dict(shape) for shape in task.search_shapes),
        verify_shapes=tuple(dict(shape) for shape in task.verify_shapes),
        relative_tolerance=task.tolerance.relative,
        absolute_tolerance=task.tolerance.absolute,
        caveats=task.caveats,
        numerics=contract_sentences(task),
        rules=language_rules(task.starting_kernel.language),
        device=device,
    )


def proposals_of(reply: Reply) -> Proposals:
    """The listed edits of a reply. Asked again, the program may have others."""
    edits = tuple(_edit(each, reply.proposer) for each in reply.edits or ())
    return Proposals(edits, dollars=reply.dollars, more=True)


def written_proposals(text: str, kernel: Kernel, proposer: str) -> Proposals:
    """What a language model's answer proposes for a kernel, and what of it can't be used."""
    reading = read_reply(text, kernel, MOST_EDITS)
    edits = tuple(replace(edit, proposer=proposer) for edit in reading.edits)
    unfit = (Dropped(each.loss, f"The edit '{each.edit.title}': {each.reason}") for each in reading.unfit)
    return Proposals(edits, dropped=(*reading.dropped, *unfit), more=True)


def read_replies(text: str) -> tuple[Reply, ...]:
    """Replies in JSON, one a line, or the answer to an `ask --text`, which names its node. Raises ReplyError."""
    if text.strip() and not text.lstrip().startswith("{"):
        named = _NODE_LINE.search(text)
        if named is None:
            raise ReplyError("The text is neither lines of JSON nor an answer with a line `node: NUMBER`.")
        return (Reply(node=int(named[1]), text=text[:LONGEST_SOURCE]),)
    replies = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            reply = msgspec.json.decode(line, type=Reply)
        except UNDECODABLE as error:
            raise ReplyError(f"Line {number} is not a reply: {excerpt(error)}.") from error
        if reply.version != VERSION:
            raise ReplyError(
                f"Line {number} is a reply of version {reply.version}; this mctskernel reads {VERSION}."
            )
        replies.append(reply)
    return tuple(replies)


_NODE_LINE = re.compile(r"^[\s*`]*node:?[ *]*(\d{1,9})[ *]*$", re.IGNORECASE | re.MULTILINE)


def _edit(replied: RepliedEdit, proposer: str) -> Edit:
    blocks = tuple(Block(block.search, block.replace) for block in replied.patch or ())
    change = Patch(blocks) if replied.source is None else WholeSource(replied.source)
    return Edit(
        replied.category,
        replied.title,
        change,
        replied.rationale,
        replied.expected_effect,
        replied.prior,
        proposer,
    )
