"""Who gets which evaluation, when evaluators come and go, answer late, twice or never. Knows nothing of Ray.

Work is pulled: an evaluator gets one call at a time, and the next when it has answered. So a slow one holds up nothing
but its own call. Whatever happens, a job ends exactly once, as long as somebody serves each of its stages.
"""

from __future__ import annotations

import enum
import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

TRIES = 2
"""How often a job may be begun: what is lost with one evaluator may be bad luck, with a second one it is the kernel."""


class Stage(enum.IntEnum):
    """What an evaluator can be asked to do; the lowest of what waits is handed out first."""

    GATE = 0
    JUDGE = 1
    BUILD = 2


@dataclass(frozen=True)
class Call:
    """One stage of a job, asked of one evaluator at a moment in seconds. No two calls have the same number."""

    number: int
    evaluator: int
    job: int
    stage: Stage
    began: float


@dataclass
class _Job:
    route: tuple[Stage, ...]
    stage: int = 0
    losses: int = 0


class Assignments:
    """Jobs that wait, evaluators that are idle, and the calls between them. For one thread.

    `limits` are the seconds that a call of each stage may take. An answered call leaves its job to the caller, who says
    how it goes on: `advance`, `retry`, `lost` or `end`.
    """

    def __init__(self, limits: Mapping[Stage, float]) -> None:
        self._limits = limits
        self._numbers = itertools.count()
        self._jobs: dict[int, _Job] = {}
        self._waiting: dict[Stage, deque[int]] = {stage: deque() for stage in Stage}
        self._serves: dict[int, frozenset[Stage]] = {}
        # In the order in which they became idle.
        self._idle: dict[int, None] = {}
        self._calls: dict[int, Call] = {}

    @property
    def jobs(self) -> tuple[int, ...]:
        """Those that have not ended."""
        return tuple(self._jobs)

    @property
    def calls(self) -> tuple[Call, ...]:
        """Those that are waited for."""
        return tuple(self._calls.values())

    def serving(self, stage: Stage) -> int:
        """How many evaluators serve a stage, busy or idle."""
        return sum(stage in serves for serves in self._serves.values())

    def begin(self, job: int, route: Sequence[Stage]) -> None:
        """Add a job, a number never used before, that goes through these stages."""
        self._jobs[job] = _Job(tuple(route))
        self._waiting[route[0]].append(job)

    def join(self, evaluator: int, serves: frozenset[Stage]) -> None:
        """Add an idle evaluator, a number never used before."""
        self._serves[evaluator] = serves
        self._idle[evaluator] = None

    def leave(self, evaluator: int) -> Call | None:
        """Take an evaluator out; the call that it hasn't answered, and never will as far as anyone looks."""
        self._serves.pop(evaluator, None)
        self._idle.pop(evaluator, None)
        found = next((each for each in self._calls.values() if each.evaluator == evaluator), None)
        return self._calls.pop(found.number) if found is not None else None

    def hand_out(self, now: float) -> list[Call]:
        """Give what waits to who is idle, the evaluator that has been idle for longest first."""
        calls = []
        for stage in Stage:
            for evaluator in [each for each in self._idle if stage in self._serves[each]]:
                if not self._waiting[stage]:
                    break
                call = Call(next(self._numbers), evaluator, self._waiting[stage].popleft(), stage, now)
                del self._idle[evaluator]
                self._calls[call.number] = call
                calls.append(call)
        return calls

    def answered(self, number: int) -> Call | None:
        """The call that has this number, which is over; None for an answer that comes twice or too late to count."""
        call = self._calls.pop(number, None)
        if call is not None:
            self._idle[call.evaluator] = None
        return call

    def overdue(self, now: float) -> list[Call]:
        """The calls that have taken longer than their stage may."""
        return [each for each in self._calls.values() if now - each.began > self._limits[each.stage]]

    def advance(self, job: int) -> None:
        """Pass a job on to its next stage."""
        state = self._jobs[job]
        state.stage += 1
        self._waiting[state.route[state.stage]].append(job)

    def retry(self, job: int) -> None:
        """Begin a job anew, before others: what was made of it so far may be gone."""
        state = self._jobs[job]
        state.stage = 0
        self._waiting[state.route[0]].appendleft(job)

    def lost(self, job: int) -> bool:
        """Begin a job anew that was lost with its evaluator; False when it may not be, and has ended."""
        state = self._jobs[job]
        state.losses += 1
        if state.losses >= TRIES:
            self.end(job)
            return False
        self.retry(job)
        return True

    def end(self, job: int) -> None:
        """Forget a job."""
        del self._jobs[job]
