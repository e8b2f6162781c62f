"""Evidence left in the journal: a search needs little of an evaluation, and the rest weighs more than all else."""

from __future__ import annotations

from pathlib import Path

import msgspec

from mctskernel.core.evaluation import Evaluation, Outcome, Score
from mctskernel.tree.events import Evaluated, Event, EventButEvaluated, decode


class EvidenceError(Exception):
    """An evaluation that can't be read from its journal any more; the message is a sentence with the file."""


class FiledEvaluation:
    """What a search needs of an evaluation, and the line of the journal in which the whole of it is."""

    __slots__ = ("_length", "_offset", "_path", "cost_seconds", "outcome", "quarantine")

    def __init__(self, path: Path, offset: int, length: int, brief: _Brief) -> None:
        self._path, self._offset, self._length = path, offset, length
        self.outcome = brief.outcome
        self.quarantine = brief.quarantine
        self.cost_seconds = sum(brief.stage_seconds.values())

    @property
    def ok(self) -> bool:
        """Whether the kernel was built, verified and timed."""
        return self.outcome is Outcome.OK

    def read(self) -> Evaluation:
        """The whole evaluation. Raises EvidenceError if the journal isn't as it was."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                event = decode(file.read(self._length))
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise EvidenceError(
                f"{self._path}, byte {self._offset}: no evaluation can be read: {error}."
            ) from error
        if not isinstance(event, Evaluated):
            raise EvidenceError(f"{self._path}, byte {self._offset}: this is no evaluation any more.")
        return event.evaluation

    def __eq__(self, other: object) -> bool:
        """Whether the evaluations are equal, wherever they are."""
        return self.read() == (other.read() if isinstance(other, FiledEvaluation) else other)

    __hash__ = None  # type: ignore[assignment]


class Filed(msgspec.Struct, frozen=True, tag="evaluated"):
    """An `Evaluated` event whose evaluation stays in the journal."""

    node: int
    evaluation: FiledEvaluation
    score: Score
    log: str = ""
    at: float = 0.0


def decode_filed(line: bytes, path: Path, offset: int) -> Event | Filed:
    """The event of one line, which is at this byte of the file; an evaluation stays there.

    Raises what `decode` does, but for what is wrong in the parts of an evaluation that no search needs.
    """
    event = _DECODER.decode(line)
    if not isinstance(event, _EvaluatedInBrief):
        return event
    evaluation = FiledEvaluation(path, offset, len(line), event.evaluation)
    return Filed(event.node, evaluation, event.score, event.log, event.at)


class _Brief(msgspec.Struct, frozen=True):
    """The fields of an evaluation that a search needs."""

    outcome: Outcome
    quarantine: str = ""
    stage_seconds: dict[str, float] = msgspec.field(default_factory=dict)


class _EvaluatedInBrief(msgspec.Struct, frozen=True, tag_field="event", tag="evaluated"):
    node: int
    evaluation: _Brief
    score: Score
    log: str = ""
    at: float = 0.0


_DECODER: msgspec.json.Decoder[EventButEvaluated | _EvaluatedInBrief] = msgspec.json.Decoder(
    EventButEvaluated | _EvaluatedInBrief
)
