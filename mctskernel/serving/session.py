"""One session: a client's task, the kernels that it wants judged, and the process that judges them while it is open."""

from __future__ import annotations

import asyncio
import enum
import time
from dataclasses import dataclass, field
from pathlib import Path

from mctskernel.executors.http_api import GateSubmission
from mctskernel.serving.evaluator import Evaluator
from mctskernel.serving.fairness import Turn
from mctskernel.serving.ledger import Job, Ledger
from mctskernel.serving.session_protocol import Evaluate, LastGate, Open, Opened


class Standing(enum.Enum):
    """What a session has: its task alone, a process that is being started, one that judges, or no use any more."""

    KEPT = "kept"
    OPENING = "opening"
    OPEN = "open"
    BROKEN = "broken"


@dataclass(eq=False)
class Visit:
    """A job whose session's process judges it now, since when by the monotonic clock."""

    turn: Turn[tuple[Session, Job]]
    since: float


@dataclass(eq=False)
class Session:
    """`folder` holds the task and goes with the session. `said` is what its executor last said of itself.

    `failures` counts processes lost since one last judged something; `problem` says why it is broken. It was last at
    work when it was `used`, and its client last heard of when it was `asked`, both by the monotonic clock.
    """

    name: str
    client: str
    folder: Path
    opening: Open
    ledger: Ledger = field(default_factory=Ledger)
    standing: Standing = Standing.KEPT
    evaluator: Evaluator | None = None
    said: Opened | None = None
    running: dict[int, Visit] = field(default_factory=dict)
    queued: int = 0
    failures: int = 0
    problem: str = ""
    used: float = field(default_factory=time.monotonic)
    asked: float = field(default_factory=time.monotonic)
    _tickets: int = 0
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def has_work(self) -> bool:
        """Whether kernels wait or are being judged."""
        return bool(self.queued or self.running)

    @property
    def state(self) -> Opened:
        """What its executor last said of itself."""
        if self.evaluator is not None:
            self.said = self.evaluator.state
        assert self.said is not None  # noqa: S101 - a client learns of a session once it has been open
        return self.said

    @property
    def capacity(self) -> int:
        """How many kernels its process has at a time: one at least, since only a process at work tells of more room."""
        return max(1, self.state.capacity)

    @property
    def burden(self) -> int:
        """Kernels and results that it holds."""
        return self.queued + len(self.running) + self.ledger.unacknowledged

    @property
    def has_process(self) -> bool:
        """Whether it holds one of the machine's places."""
        return self.standing in {Standing.OPENING, Standing.OPEN}

    def can_run(self, job: Job) -> bool:
        """Whether its process can take a job now: a gate, or what a process was lost over, is judged alone."""
        if self.standing is not Standing.OPEN or self.evaluator is None:
            return False
        if any(_alone(visit.turn.item[1]) for visit in self.running.values()):
            return False
        return not self.running if _alone(job) else len(self.running) < self.capacity

    def run(self, turn: Turn[tuple[Session, Job]], now: float) -> None:
        """Have its process judge a job."""
        assert self.evaluator is not None  # noqa: S101 - `can_run` said so
        job = turn.item[1]
        self._tickets += 1
        self.running[self._tickets] = Visit(turn, now)
        self.queued -= 1
        kernel = job.submission.kernel
        if isinstance(job.submission, GateSubmission):
            self.evaluator.send(LastGate(self._tickets, kernel, job.submission.baseline))
        else:
            self.evaluator.send(Evaluate(self._tickets, kernel))

    def tell(self) -> None:
        """Wake whoever waits for results."""
        self._news.set()
        self._news = asyncio.Event()

    async def hear(self, seconds: float) -> None:
        """Wait until `tell` is called, or so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return


def _alone(job: Job) -> bool:
    return job.gate or job.losses > 0
