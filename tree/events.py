"""What can happen to a tree. The journal holds these, and the tree is a fold over them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from mctskernel.core.edit import Category, Factor
from mctskernel.core.evaluation import Evaluation, Score
from mctskernel.core.kernel import Language
from mctskernel.core.proposer import Loss, Purpose
from mctskernel.tree.policy import Policy
from mctskernel.tree.storable import storable


class KernelRecord(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A kernel whose source is the blob `source`. `factors` are what a starting kernel decides by itself."""

    identity: str
    source: str
    language: Language = Language.CUDA
    factors: tuple[Factor, ...] = ()


class EditRecord(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """An edit whose change is the blob `change`, or to set what its factors name where there is none.

    `exchange` is the number, in its reply, of the exchange with a model that it came from.
    """

    category: Category
    title: str
    change: str
    rationale: str = ""
    expected_effect: str = ""
    prior: float = 1.0
    proposer: str = ""
    factors: tuple[Factor, ...] = ()
    exchange: int | None = None
    promise: float | None = None


class ExchangeRecord(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """An exchange with a model whose prompt and reply are the blobs `prompt` and `reply`."""

    purpose: Purpose
    model: str
    prompt: str
    reply: str = ""
    expert: str = ""
    problem: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    dollars: float = 0.0
    seconds: float = 0.0
    recorded: bool = False
    loss: Loss | None = None
    requests: int = 1
    estimated: bool = False


class DroppedRecord(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A reply, or an edit of one, that came to nothing, and why."""

    loss: Loss
    reason: str


class PredictionRecord(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What a surrogate says of a kernel; without `seconds` it has no opinion.

    `gain` is the predicted time of the parent over it, 0 if unknown, and `sigma` one standard deviation of the
    logarithm of that ratio's error.
    """

    seconds: float | None = None
    terms: dict[str, float] = msgspec.field(default_factory=dict)
    gain: float = 0.0
    sigma: float = 0.0

    @property
    def is_tie(self) -> bool:
        """Whether it is as fast as its parent within the uncertainty."""
        return self.gain > 0 and abs(math.log(self.gain)) <= self.sigma

    @property
    def is_worse(self) -> bool:
        """Whether it is slower than its parent by more than the uncertainty."""
        return self.gain > 0 and math.log(self.gain) < -self.sigma


class RolloutStep(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The title of an edit on a rollout, and what a surrogate says of the kernel after it, against the node's own."""

    edit: str
    prediction: PredictionRecord = PredictionRecord()


class _Event(msgspec.Struct, frozen=True, tag_field="event", omit_defaults=True, kw_only=True):
    """`at` is when it was recorded, in seconds since 1970."""

    at: float = 0.0


class Started(_Event, frozen=True, tag="started"):
    """A search began; always the first event."""

    policy: Policy
    seed: int


class Submitted(_Event, frozen=True, tag="submitted"):
    """A kernel went to be evaluated as the new node `node`, made by edit number `edit` of the node `parent`.

    The root has neither. `path` holds the nodes from the root to the parent, where selection came another way than by
    the edits that made them. Versions 1 and 2 have it always, and no parent.
    """

    node: int
    kernel: KernelRecord
    path: tuple[int, ...] = ()
    edit: int | None = None
    parent: int | None = None

    @property
    def edited(self) -> int | None:
        """The node whose edit made the kernel; None for the root."""
        return self.path[-1] if self.path else self.parent

    @property
    def identity(self) -> str:
        """The identity of the kernel."""
        return self.kernel.identity


class Evaluated(_Event, frozen=True, tag="evaluated"):
    """The evaluation of `node` finished. Its log is the blob `log` (empty: no log)."""

    node: int
    evaluation: Evaluation
    score: Score
    log: str = ""

    @property
    def cost_seconds(self) -> float:
        """What the evaluation cost, all stages."""
        return self.evaluation.cost_seconds


class Asked(_Event, frozen=True, tag="asked"):
    """A proposer works on `node`.

    `path` holds the nodes from the root to it, where selection came another way than by the edits that made them.
    Versions 1 and 2 have it always, and no node.
    """

    path: tuple[int, ...] = ()
    node: int | None = None

    @property
    def awaited(self) -> int:
        """The node on which the proposer works; -1 if nothing says."""
        if self.path:
            return self.path[-1]
        return -1 if self.node is None else self.node


class Proposed(_Event, frozen=True, tag="proposed"):
    """A proposer replied with edits of `node`, at a cost in US dollars; with `more`, it is sure to have others.

    If it was `silent`, it said nothing about the node: its server didn't answer, or nobody waited.
    """

    node: int
    edits: tuple[EditRecord, ...]
    dollars: float = 0.0
    remarks: tuple[str, ...] = ()
    more: bool = False
    silent: bool = False
    exchanges: tuple[ExchangeRecord, ...] = ()
    dropped: tuple[DroppedRecord, ...] = ()

    def kept(self, before: Sequence[EditRecord], numbers: Sequence[int]) -> Sequence[EditRecord]:
        """What a node had before, and after it the edits of these numbers."""
        return [*before, *map(self.edits.__getitem__, numbers)]


class Predicted(_Event, frozen=True, tag="predicted"):
    """A surrogate's word on the kernel that edit number `edit` of `node` makes; on the node's own without one."""

    node: int
    prediction: PredictionRecord
    edit: int | None = None


class RolledOut(_Event, frozen=True, tag="rolled-out"):
    """A line of edits that begins at the kernel of `node`, none of them evaluated."""

    node: int
    steps: tuple[RolloutStep, ...] = ()

    @property
    def gain(self) -> float:
        """The node's time over the least that is predicted along the line, 1 without a gain beyond the uncertainty."""
        found = (step.prediction for step in self.steps)
        return max((each.gain for each in found if each.gain > 1 and not each.is_tie), default=1.0)


class Duplicated(_Event, frozen=True, tag="duplicated"):
    """Edit number `edit` of `node` makes the kernel that the node `of` already is."""

    node: int
    edit: int
    of: int


class Refused(_Event, frozen=True, tag="refused"):
    """Edit number `edit` of `node` made no kernel, for instance because its patch doesn't fit."""

    node: int
    edit: int
    reason: str


class Resumed(_Event, frozen=True, tag="resumed"):
    """Another process took over: replies that were awaited won't come, evaluations in flight start again."""


Event = (
    Started
    | Submitted
    | Evaluated
    | Asked
    | Proposed
    | Predicted
    | RolledOut
    | Duplicated
    | Refused
    | Resumed
)


def is_costly(event: Event) -> bool:
    """Whether losing the event would lose work that was paid for, in GPU time or in money."""
    return isinstance(event, Started | Evaluated) or (isinstance(event, Proposed) and event.dollars > 0)


_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def encode(event: Event) -> bytes:
    """One line of JSON, without its end, that `decode` reads.

    What JSON can't hold is replaced (`mctskernel.tree.storable`).
    """
    return encode_and_decode(event)[0]


def encode_and_decode(event: Event) -> tuple[bytes, Event]:
    """The line that `encode` makes, and the event that `decode` makes of it."""
    try:
        line = _ENCODER.encode(event)
        return line, decode(line)
    except (UnicodeEncodeError, msgspec.ValidationError):
        line = _ENCODER.encode(storable(msgspec.to_builtins(event)))
        return line, decode(line)


def decode(line: bytes) -> Event:
    """The event of one line; raises `msgspec.DecodeError` or UnicodeDecodeError for anything else."""
    return _DECODER.decode(line)
