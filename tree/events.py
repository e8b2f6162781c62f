"""Events: everything that can happen to a tree. A journal holds them, and the tree is rebuilt by replaying them."""

from __future__ import annotations

import math
import sys
from collections.abc import Hashable
from typing import Any

import msgspec

from mctskernel.core.edit import Category, Factor, decided
from mctskernel.core.evaluation import Evaluation, Score
from mctskernel.core.kernel import Language
from mctskernel.core.proposer import Dropped, Exchange
from mctskernel.tree.policy import Policy


class KernelRecord(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A kernel; `source` names the blob with its text. `factors` are the settings of a starting kernel."""

    identity: str
    source: str
    language: Language = Language.CUDA
    factors: tuple[Factor, ...] = ()


class EditRecord(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """An edit; `change` names the blob of its patch or source, `exchange` its model call's index in the reply."""

    category: Category
    title: str
    change: str
    rationale: str = ""
    expected_effect: str = ""
    prior: float = 1.0
    proposer: str = ""
    factors: tuple[Factor, ...] = ()
    exchange: int | None = None

    @property
    def content(self) -> Hashable:
        """What it changes: two edits of a node are the same if these are equal."""
        return self.change or self.factors

    @property
    def decisions(self) -> tuple[Factor, ...]:
        """What it decides: that its title is done, if it names no factors."""
        return decided(self.category, self.title, self.factors)


class _Event(msgspec.Struct, frozen=True, tag_field="event", omit_defaults=True, kw_only=True):
    """`at` is when it was recorded, in seconds since 1970."""

    at: float = 0.0


class Started(_Event, frozen=True, tag="started"):
    """A search began; always the first event."""

    policy: Policy
    seed: int


class Submitted(_Event, frozen=True, tag="submitted"):
    """A kernel was sent to be evaluated as the new node `node`: edit number `edit` of `parent`, or the root."""

    node: int
    kernel: KernelRecord
    parent: int | None = None
    edit: int | None = None


class Evaluated(_Event, frozen=True, tag="evaluated"):
    """The evaluation of `node` finished. `log` names the blob with the compiler's log (empty: no log)."""

    node: int
    evaluation: Evaluation
    score: Score
    log: str = ""


class Retimed(_Event, frozen=True, tag="retimed"):
    """`node`, which had an evaluation, has this one now: the search goes on with another GPU of the same model."""

    node: int
    evaluation: Evaluation
    score: Score
    log: str = ""


class Requested(_Event, frozen=True, tag="requested"):
    """A proposer was asked for edits of `node`, and the search goes on until it replies."""

    node: int


class Proposed(_Event, frozen=True, tag="proposed"):
    """A reply about `node`, its edits and US dollars; `more` may come; `silent` if there was no answer."""

    node: int
    edits: tuple[EditRecord, ...]
    dollars: float = 0.0
    more: bool = False
    silent: bool = False
    exchanges: tuple[Exchange, ...] = ()
    dropped: tuple[Dropped, ...] = ()


class Duplicated(_Event, frozen=True, tag="duplicated"):
    """Edit number `edit` of `node` makes the kernel of the existing node `of`."""

    node: int
    edit: int
    of: int


class Refused(_Event, frozen=True, tag="refused"):
    """Edit number `edit` of `node` made no kernel, for instance because its patch doesn't apply."""

    node: int
    edit: int
    reason: str


class Resumed(_Event, frozen=True, tag="resumed"):
    """Another process continued the search: pending replies are lost, pending evaluations are started again."""


Event = Started | Submitted | Evaluated | Retimed | Requested | Proposed | Duplicated | Refused | Resumed


def is_costly(event: Event) -> bool:
    """Whether losing the event would lose work that cost GPU time or money."""
    return isinstance(event, Started | Evaluated) or (isinstance(event, Proposed) and event.dollars > 0)


def encode(event: Event) -> bytes:
    """One line of JSON, without its newline, that `decode` reads. What JSON can't hold is replaced (`storable`)."""
    return encode_and_decode(event)[0]


def encode_and_decode(event: Event) -> tuple[bytes, Event]:
    """The line of an event, and the event as it will be read back."""
    try:
        line = _ENCODER.encode(event)
        return line, decode(line)
    except (UnicodeEncodeError, msgspec.ValidationError):
        line = _ENCODER.encode(storable(msgspec.to_builtins(event)))
        return line, decode(line)


def decode(line: bytes) -> Event:
    """The event of one line; raises `msgspec.DecodeError` or UnicodeDecodeError for anything else."""
    return _DECODER.decode(line)


def storable(value: Any) -> Any:
    """Built-in data that JSON and UTF-8 can hold.

    Candidates, compilers and models write what they can't: unpaired surrogates become question marks, infinities and
    NaN the largest double of their sign.
    """
    match value:
        case dict():
            return {storable(key): storable(item) for key, item in value.items()}
        case list() | tuple():
            return [storable(item) for item in value]
        case str():
            return storable_text(value)
        case float() if not math.isfinite(value):
            return math.copysign(sys.float_info.max, value)
    return value


def storable_text(text: str) -> str:
    """The text with unpaired surrogates as question marks."""
    return text.encode(errors="replace").decode()


_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
