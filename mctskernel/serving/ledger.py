"""What a session was asked to judge and what came of it, so that a request made twice changes nothing."""

from __future__ import annotations

import enum
import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field

import msgspec

from mctskernel.core.evaluation import Evaluation
from mctskernel.executors.http_api import GateSubmission, Result, Submission, encode

REMEMBERED = 10_000
"""Keys whose results were acknowledged that are still known, each with a digest of its kernel."""

MOST_SAID = 16 << 20
"""Bytes of results in one answer, unless the first alone is larger."""


class Put(enum.Enum):
    """What a key meant to a ledger."""

    NEW = enum.auto()
    SAME = enum.auto()
    OTHER = enum.auto()


@dataclass(eq=False)
class Job:
    """A kernel under its client's key; `losses` is how often a process was lost while it judged it."""

    key: str
    submission: Submission | GateSubmission
    losses: int = 0

    @property
    def gate(self) -> bool:
        """Whether it is a last gate."""
        return isinstance(self.submission, GateSubmission)


@dataclass
class Ledger:
    """The keys of a session, and its results until they are acknowledged.

    Results are kept as the JSON that is sent, again and again until then: `kept_bytes` of it.
    """

    finished: int = 0
    kept_bytes: int = 0
    _open: dict[str, bytes] = field(default_factory=dict)
    _done: OrderedDict[str, bytes] = field(default_factory=OrderedDict)
    _results: OrderedDict[int, bytes] = field(default_factory=OrderedDict)

    def look(self, key: str, submission: Submission | GateSubmission) -> Put:
        """What this key means: a kernel that is new to it, the one that it holds, or another one."""
        known = self._open.get(key) or self._done.get(key)
        if known is None:
            return Put.NEW
        return Put.SAME if known == _digest(submission) else Put.OTHER

    def enter(self, job: Job) -> None:
        """Let a new key hold its kernel."""
        self._open[job.key] = _digest(job.submission)

    def finish(self, job: Job, evaluation: Evaluation) -> None:
        """Keep a result under the next number."""
        self.finished += 1
        said = encode(Result(self.finished, job.key, job.gate, evaluation))
        self._results[self.finished] = said
        self.kept_bytes += len(said)
        self._done[job.key] = self._open.pop(job.key)
        while len(self._done) > REMEMBERED + len(self._results):
            self._done.popitem(last=False)

    def acknowledge(self, number: int) -> None:
        """Forget the results up to a number."""
        while self._results and next(iter(self._results)) <= number:
            _, said = self._results.popitem(last=False)
            self.kept_bytes -= len(said)

    @property
    def unacknowledged(self) -> int:
        """How many results are kept."""
        return len(self._results)

    def results(self) -> bytes:
        """`Results` as JSON: what is kept, as much as fits an answer."""
        said: list[bytes] = []
        room = MOST_SAID
        for each in self._results.values():
            room -= len(each)
            if said and room < 0:
                break
            said.append(each)
        return b'{"results":[' + b",".join(said) + b"]}"


def _digest(submission: Submission | GateSubmission) -> bytes:
    words = (type(submission).__name__, submission)
    return hashlib.sha256(msgspec.msgpack.encode(words)).digest()
