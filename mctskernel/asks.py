"""Asks and replies: what a program of someone else's is told of a node, and the edits that it replies with, as JSON.

One JSON object a line. `ask_schema` and `reply_schema` are all that such a program needs to know.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec

from mctskernel.core.contract_words import contract_sentences
from mctskernel.core.documents import UNDECODABLE, excerpt
from mctskernel.core.edit import Block, Category, Edit, Patch, WholeSource
from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.core.kernel import Language
from mctskernel.core.proposer import Attempt, ProposalRequest, Proposals
from mctskernel.core.task import Task
from mctskernel.core.user_errors import MisuseError
from mctskernel.edits.llm.prompt import language_rules

VERSION = 1

LONGEST_LOG = 8000
"""Characters of a compiler's log that an ask carries: the first errors say what is wrong."""

LONGEST_SOURCE = 1_000_000
"""Characters of a text in a reply."""


class ReplyError(MisuseError, ValueError):
    """Replies that can't be read; the message is a sentence that says which line, and what is wrong."""


class AskedTensor(msgspec.Struct, frozen=True):
    """An input or output; extents are numbers or expressions over the dimensions of a shape."""

    name: str
    dtype: str
    extents: tuple[int | str, ...]


class AskedTask(msgspec.Struct, frozen=True):
    """What is computed. Kernels are timed at `search_shapes` and have to be right at these and others.

    `rules` say how a kernel of the language is written, with its launch plan; `device` what the GPU can do, and the
    least time that the task takes on it. The tolerances are of outputs that have none of their own; `numerics` says in
    sentences what each result may be, and what NaN, infinities and the like come to. `unanchored` says that a model
    wrote the reference, and that nobody vouches for it.
    """

    name: str
    summary: str
    reference: str
    inputs: tuple[AskedTensor, ...]
    outputs: tuple[AskedTensor, ...]
    scalars: dict[str, float]
    search_shapes: tuple[dict[str, int], ...]
    relative_tolerance: float
    absolute_tolerance: float
    rules: str
    device: tuple[str, ...]
    unanchored: bool = False
    numerics: tuple[str, ...] = ()


class AskedCause(msgspec.Struct, frozen=True):
    """What binds the kernel, and the fraction of its time that this explains."""

    bottleneck: str
    share: float
    sentence: str


class AskedEvidence(msgspec.Struct, frozen=True):
    """How the node's kernel was judged.

    `seconds` is of one run, the geometric mean over the search shapes, null where it has no valid time; `numbers` says
    whether that was measured or modelled. `speedup` is over the starting kernel, `best_speedup` that of the fastest
    kernel so far. A kernel that failed is to be repaired: `message` and `log` say what is wrong.
    """

    outcome: Outcome
    numbers: Source
    message: str
    log: str
    seconds: float | None
    speedup: float
    best_speedup: float
    causes: tuple[AskedCause, ...]
    explanation: str


class AskedAttempt(msgspec.Struct, frozen=True):
    """An edit that was tried; `gain` is the time before it over the time after it, 0 if unknown."""

    title: str
    category: str
    outcome: Outcome
    gain: float
    message: str


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A node that needs edits, with its evidence.

    `lineage` are the edits that made its kernel from the starting kernel, `siblings` edits of this kernel that were
    tried before (don't repeat them), `elsewhere` those that gained most elsewhere in the tree.
    """

    version: int = VERSION
    node: int
    language: Language
    source: str
    task: AskedTask
    evidence: AskedEvidence
    lineage: tuple[AskedAttempt, ...] = ()
    siblings: tuple[AskedAttempt, ...] = ()
    elsewhere: tuple[AskedAttempt, ...] = ()


_Text = Annotated[str, msgspec.Meta(max_length=LONGEST_SOURCE)]
_Line = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
_Paragraph = Annotated[str, msgspec.Meta(max_length=4000)]


class RepliedBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Text that occurs exactly once in the source, and what takes its place."""

    search: Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_SOURCE)]
    replace: _Text


class RepliedEdit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A change of the node's kernel: a whole new `source`, or a `patch` of blocks applied in order.

    `prior` is its promise among the edits of one reply, of any scale.
    """

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
    """Edits of a node, none if there is nothing to try. `dollars` is what they cost."""

    node: Annotated[int, msgspec.Meta(ge=0)]
    edits: Annotated[tuple[RepliedEdit, ...], msgspec.Meta(max_length=100)]
    proposer: _Line = "outside"
    dollars: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.0
    version: int = VERSION


def make_ask(request: ProposalRequest, device: tuple[str, ...] = ()) -> Ask:
    """The ask of a request, with what is known of the device in sentences."""
    return Ask(
        node=request.node,
        language=request.kernel.language,
        source=request.kernel.source,
        task=asked_task(request.task, device),
        evidence=_evidence(request),
        lineage=_attempts(request.lineage),
        siblings=_attempts(request.siblings),
        elsewhere=_attempts(request.elsewhere),
    )


def asked_task(task: Task, device: tuple[str, ...] = ()) -> AskedTask:
    """What a program is told of a task, and of the device in sentences."""
    return AskedTask(
        name=task.name,
        summary=task.summary,
        reference=task.reference_source,
        inputs=tuple(AskedTensor(each.name, each.dtype, each.shape) for each in task.inputs),
        outputs=tuple(AskedTensor(each.name, each.dtype, each.shape) for each in task.outputs),
        scalars=dict(task.scalars),
        search_shapes=tuple(dict(shape) for shape in task.search_shapes),
        relative_tolerance=task.tolerance.relative,
        absolute_tolerance=task.tolerance.absolute,
        unanchored=task.unanchored,
        numerics=contract_sentences(task),
        rules=language_rules(task.starting_kernel.language),
        device=device,
    )


def proposals_of(reply: Reply) -> Proposals:
    """What a reply proposes. Whoever is asked again may always have other edits."""
    return Proposals(
        tuple(_edit(each, reply.proposer) for each in reply.edits), dollars=reply.dollars, more=True
    )


def encode_asks(asks: Iterable[Ask]) -> str:
    """A line of JSON for each."""
    return "".join(msgspec.json.encode(ask).decode() + "\n" for ask in asks)


def read_replies(lines: str) -> tuple[Reply, ...]:
    """Replies, one a line; blank lines are nothing. Raises ReplyError at the first that isn't one."""
    return tuple(
        _read_reply(line, number) for number, line in enumerate(lines.split("\n"), 1) if line.strip()
    )


def ask_schema() -> Mapping[str, Any]:
    """The JSON schema of an ask."""
    return msgspec.json.schema(Ask)


def reply_schema() -> Mapping[str, Any]:
    """The JSON schema of a reply."""
    return msgspec.json.schema(Reply)


def _read_reply(line: str, number: int) -> Reply:
    try:
        reply = msgspec.json.decode(line, type=Reply)
    except UNDECODABLE as error:
        raise ReplyError(f"Line {number} is not a reply: {excerpt(error)}.") from error
    if reply.version != VERSION:
        raise ReplyError(
            f"Line {number} is a reply of version {reply.version}; this mctskernel reads {VERSION}."
        )
    return reply


def _edit(replied: RepliedEdit, proposer: str) -> Edit:
    if replied.source is not None:
        change: Patch | WholeSource = WholeSource(replied.source)
    else:
        change = Patch(tuple(Block(block.search, block.replace) for block in replied.patch or ()))
    return Edit(
        category=replied.category,
        title=replied.title,
        change=change,
        rationale=replied.rationale,
        expected_effect=replied.expected_effect,
        prior=replied.prior,
        proposer=proposer,
    )


def _evidence(request: ProposalRequest) -> AskedEvidence:
    evaluation = request.evaluation
    diagnosis = evaluation.diagnosis
    return AskedEvidence(
        outcome=evaluation.outcome,
        numbers=evaluation.source,
        message=evaluation.message,
        log=evaluation.log[:LONGEST_LOG],
        seconds=_seconds(evaluation),
        speedup=request.speedup,
        best_speedup=request.best_speedup,
        causes=tuple(
            AskedCause(str(cause.bottleneck), cause.share, cause.sentence)
            for cause in (diagnosis.causes if diagnosis else ())
        ),
        explanation=diagnosis.explanation if diagnosis else "",
    )


def _seconds(evaluation: Evaluation) -> float | None:
    seconds = [timing.seconds for timing in evaluation.timings if timing.seconds > 0]
    return math.exp(math.fsum(map(math.log, seconds)) / len(seconds)) if seconds else None


def _attempts(attempts: Iterable[Attempt]) -> tuple[AskedAttempt, ...]:
    return tuple(
        AskedAttempt(each.title, each.category, each.outcome, each.gain, each.message) for each in attempts
    )
