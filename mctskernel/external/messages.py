"""What a program outside is asked and answers: lines of JSON, or a text for a language model and its answer.

Replies are hostile input: a field that isn't described here, or a text that is too long, refuses the whole reply.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Annotated

import msgspec

from mctskernel.core.contract_words import contract_sentences
from mctskernel.core.documents import UNDECODABLE, excerpt
from mctskernel.core.edit import Block, Category, Edit, Patch, WholeSource
from mctskernel.core.evaluation import Cause, Outcome, Source
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.proposer import Attempt, Dropped, ProposalRequest, Proposals
from mctskernel.core.task import Task
from mctskernel.core.user_errors import MisuseError
from mctskernel.edits.llm.prompt import language_rules, reference_text
from mctskernel.edits.llm.replies import read_reply
from mctskernel.tree.trajectory import run_seconds

VERSION = 1

LONGEST_LOG = 8000  # characters of a compiler's log that an ask carries: the first errors say what is wrong

LONGEST_SOURCE = 1_000_000  # characters of a text in a reply

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
    """Make the ask of a request, with what is known of the device in sentences."""
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
    """Return the listed edits of a reply. Asked again, the program may have others."""
    edits = tuple(_edit(each, reply.proposer) for each in reply.edits or ())
    return Proposals(edits, dollars=reply.dollars, more=True)


def written_proposals(text: str, kernel: Kernel, proposer: str) -> Proposals:
    """Read what a language model's answer proposes for a kernel, and what of it can't be used."""
    reading = read_reply(text, kernel, MOST_EDITS)
    edits = tuple(replace(edit, proposer=proposer) for edit in reading.edits)
    unfit = (Dropped(each.loss, f"The edit '{each.edit.title}': {each.reason}") for each in reading.unfit)
    return Proposals(edits, dropped=(*reading.dropped, *unfit), more=True)


def read_replies(text: str) -> tuple[Reply, ...]:
    """Read replies in JSON, one a line, or the answer to an `ask --text`, which names its node. Raises ReplyError."""
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
