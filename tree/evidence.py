"""Evidence left in the journal: a search needs little of what it records, and the rest weighs more than all else.

What is filed looks like what it stands for, and reads its line of the journal when it is asked for more than a search
needs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar, overload

import msgspec

from mctskernel.core.edit import Factor
from mctskernel.core.evaluation import Evaluation, Outcome, Score
from mctskernel.core.user_errors import BadRunError
from mctskernel.tree.events import (
    Asked,
    Duplicated,
    EditRecord,
    Evaluated,
    Event,
    KernelRecord,
    Predicted,
    Proposed,
    Refused,
    Resumed,
    RolledOut,
    Started,
    Submitted,
    decode,
)

REMEMBERED = 64
"""Replies of proposers that are kept after they were read: their edits are asked for one by one."""

Kind = TypeVar("Kind", bound=Event)


class EvidenceError(BadRunError):
    """What can't be read from its journal any more; the message is a sentence with the file."""


class Lines:
    """A journal from which events are read again, by the byte at which their line begins."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._replies: OrderedDict[int, tuple[EditRecord, ...]] = OrderedDict()

    def read(self, offset: int, kind: type[Kind]) -> Kind:
        """The event of a line, which must be of this kind. Raises EvidenceError if the journal isn't as it was."""
        try:
            with self._path.open("rb") as file:
                file.seek(offset)
                event = decode(file.readline())
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise EvidenceError(f"{self._path}, byte {offset}: no event can be read: {error}.") from error
        if not isinstance(event, kind):
            raise EvidenceError(f"{self._path}, byte {offset}: this is another event than it was.")
        return event

    def edits(self, offset: int) -> tuple[EditRecord, ...]:
        """The edits of a reply."""
        found = self._replies.get(offset)
        if found is None:
            return self.remember(offset, self.read(offset, Proposed))
        self._replies.move_to_end(offset)
        return found

    def remember(self, offset: int, reply: Proposed) -> tuple[EditRecord, ...]:
        """Keeps the edits of a reply for a while, and returns them."""
        self._replies[offset] = reply.edits
        if len(self._replies) > REMEMBERED:
            self._replies.popitem(last=False)
        return reply.edits


class FiledKernel(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The record of a kernel."""

    lines: Lines
    offset: int

    def read(self) -> KernelRecord:
        """The whole record. Raises EvidenceError."""
        return self.lines.read(self.offset, Submitted).kernel

    def __eq__(self, other: object) -> bool:
        """Whether the records are equal, wherever they are."""
        return self.read() == (other.read() if isinstance(other, FiledKernel) else other)

    __hash__ = None  # type: ignore[assignment]


class FiledEvaluation(msgspec.Struct, frozen=True, eq=False, gc=False):
    """An evaluation: how it ended, and why its time isn't believed if it isn't."""

    lines: Lines
    offset: int
    outcome: Outcome
    quarantine: str

    @property
    def ok(self) -> bool:
        """Whether the kernel was built, verified and timed."""
        return self.outcome is Outcome.OK

    def read(self) -> Evaluation:
        """The whole evaluation. Raises EvidenceError."""
        return self.lines.read(self.offset, Evaluated).evaluation

    def __eq__(self, other: object) -> bool:
        """Whether the evaluations are equal, wherever they are."""
        return self.read() == (other.read() if isinstance(other, FiledEvaluation) else other)

    __hash__ = None  # type: ignore[assignment]


class FiledScore(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A score, but for its terms."""

    lines: Lines
    offset: int
    reward: float
    speedup: float

    @property
    def terms(self) -> dict[str, float]:
        """The terms of the reward. Raises EvidenceError."""
        return self.read().terms

    def read(self) -> Score:
        """The whole score. Raises EvidenceError."""
        return self.lines.read(self.offset, Evaluated).score

    def __eq__(self, other: object) -> bool:
        """Whether the scores are equal, wherever they are."""
        return self.read() == (other.read() if isinstance(other, FiledScore) else other)

    __hash__ = None  # type: ignore[assignment]


class FiledEdits(Sequence[EditRecord]):
    """Edits of one node: those of a reply that were new to it, after what it had `before`."""

    __slots__ = ("_before", "_kept", "_length", "_lines", "_offset")

    def __init__(self, before: Sequence[EditRecord], lines: Lines, offset: int, kept: Sequence[int]) -> None:
        self._before, self._lines, self._offset, self._kept = before, lines, offset, kept
        self._length = len(before) + len(kept)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> EditRecord: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[EditRecord]: ...
    def __getitem__(self, index: int | slice) -> EditRecord | Sequence[EditRecord]:
        """An edit, or some of them. Raises EvidenceError."""
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        number = range(self._length)[index]
        within = number - len(self._before)
        return self._lines.edits(self._offset)[self._kept[within]] if within >= 0 else self._before[number]

    def __iter__(self) -> Iterator[EditRecord]:
        yield from self._before
        edits = self._lines.edits(self._offset)
        yield from (edits[number] for number in self._kept)

    def __eq__(self, other: object) -> bool:
        """Whether the edits are equal, wherever they are."""
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


class FiledSubmission(msgspec.Struct, frozen=True, tag="submitted", gc=False):
    """A `Submitted` event whose kernel stays in the journal."""

    node: int
    kernel: FiledKernel
    identity: str
    path: tuple[int, ...]
    edit: int | None
    parent: int | None

    @property
    def edited(self) -> int | None:
        """The node whose edit made the kernel; None for the root."""
        return self.path[-1] if self.path else self.parent


class FiledResult(msgspec.Struct, frozen=True, tag="evaluated", gc=False):
    """An `Evaluated` event whose evaluation stays in the journal, and the terms of its score with it."""

    node: int
    evaluation: FiledEvaluation
    score: FiledScore
    log: str
    cost_seconds: float


class FiledReply(msgspec.Struct, frozen=True, tag="proposed", gc=False):
    """A `Proposed` event whose edits stay in the journal, but for their changes and priors."""

    lines: Lines
    offset: int
    node: int
    edits: tuple[EditInBrief, ...]
    dollars: float
    more: bool
    silent: bool

    def kept(self, before: Sequence[EditRecord], numbers: Sequence[int]) -> FiledEdits:
        """What a node had before, and after it the edits of these numbers."""
        every = range(len(self.edits))
        return FiledEdits(
            before, self.lines, self.offset, every if len(numbers) == len(every) else tuple(numbers)
        )


Filed = FiledSubmission | FiledResult | FiledReply


def decode_filed(line: bytes, lines: Lines, offset: int) -> Event | Filed:
    """The event of one line, which begins at this byte of the journal; what no search needs stays there.

    Raises what `decode` does, but for what is wrong in the parts that stay.
    """
    event = _DECODER.decode(line)
    if isinstance(event, _Evaluated):
        return event.filed(lines, offset)
    if isinstance(event, _Submitted):
        return event.filed(lines, offset)
    if isinstance(event, _Proposed):
        return event.filed(lines, offset)
    return event


class EditInBrief(msgspec.Struct, frozen=True, gc=False):
    """The fields of an edit that every search needs."""

    change: str
    prior: float = 1.0
    factors: tuple[Factor, ...] = ()


class _Kernel(msgspec.Struct, frozen=True, gc=False):
    identity: str


class _Evaluation(msgspec.Struct, frozen=True, gc=False):
    outcome: Outcome
    quarantine: str = ""
    stage_seconds: dict[str, float] = msgspec.field(default_factory=dict)


class _Score(msgspec.Struct, frozen=True, gc=False):
    reward: float
    speedup: float


class _Submitted(msgspec.Struct, frozen=True, tag_field="event", tag="submitted", gc=False):
    node: int
    kernel: _Kernel
    path: tuple[int, ...] = ()
    edit: int | None = None
    parent: int | None = None

    def filed(self, lines: Lines, offset: int) -> FiledSubmission:
        kernel = FiledKernel(lines, offset)
        return FiledSubmission(self.node, kernel, self.kernel.identity, self.path, self.edit, self.parent)


class _Evaluated(msgspec.Struct, frozen=True, tag_field="event", tag="evaluated", gc=False):
    node: int
    evaluation: _Evaluation
    score: _Score
    log: str = ""

    def filed(self, lines: Lines, offset: int) -> FiledResult:
        brief, score = self.evaluation, self.score
        evaluation = FiledEvaluation(lines, offset, brief.outcome, brief.quarantine)
        filed_score = FiledScore(lines, offset, score.reward, score.speedup)
        cost = sum(brief.stage_seconds.values())
        return FiledResult(self.node, evaluation, filed_score, self.log, cost)


class _Proposed(msgspec.Struct, frozen=True, tag_field="event", tag="proposed", gc=False):
    node: int
    edits: tuple[EditInBrief, ...]
    dollars: float = 0.0
    more: bool = False
    silent: bool = False

    def filed(self, lines: Lines, offset: int) -> FiledReply:
        return FiledReply(lines, offset, self.node, self.edits, self.dollars, self.more, self.silent)


_Line = (
    Started
    | _Submitted
    | _Evaluated
    | Asked
    | _Proposed
    | Predicted
    | RolledOut
    | Duplicated
    | Refused
    | Resumed
)

_DECODER: msgspec.json.Decoder[_Line] = msgspec.json.Decoder(_Line)
