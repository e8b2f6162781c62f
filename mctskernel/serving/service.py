"""The sessions of all clients on one machine, and the one queue of what they want judged."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mctskernel import __version__
from mctskernel.core.device import DeviceError
from mctskernel.core.evaluation import Evaluation, Guard, Outcome
from mctskernel.core.task import TaskError
from mctskernel.executors.held_folder import held_folder
from mctskernel.executors.http_api import (
    GateSubmission,
    OpenSession,
    ServerStatus,
    SessionOpened,
    SessionStatus,
    Submission,
)
from mctskernel.executors.task_files import write_task
from mctskernel.serving import places, refusals
from mctskernel.serving.evaluator import DiedError, Evaluator
from mctskernel.serving.fairness import FairQueue
from mctskernel.serving.ledger import Job, Put
from mctskernel.serving.orphans import Nursery
from mctskernel.serving.session import Session, Standing, Visit
from mctskernel.serving.settings import Settings
from mctskernel.serving.uploaded_task import opening_of

PREFIX = "mctskernel-serve-"

MAX_FAILURES = 3
"""Processes of a session that may be lost in a row, none having judged anything."""

MAX_LOSSES = 2
"""Processes that a kernel may cost before it is told that it crashes them."""

OPENED_AT_A_TIME = 2
TICK_SECONDS = 0.5
BURIAL_SECONDS = 10.0

FAREWELL_SECONDS = 2.0
"""How long clients have to fetch their last results when a server closes."""

Follow = Callable[[str], None]


class Service:
    """Judges for clients by name; whatever isn't granted raises RefusalError. Use it as an asynchronous context.

    `follow` is told in sentences what sessions come and go. All of it runs on one event loop.
    """

    def __init__(self, settings: Settings, nursery: Nursery, follow: Follow = lambda _: None) -> None:
        self._settings, self._limits, self._follow = settings, settings.limits, follow
        self._nursery = nursery
        self._sessions: dict[str, Session] = {}
        self._queue: FairQueue[tuple[Session, Job]] = FairQueue()
        self._openings = asyncio.Semaphore(OPENED_AT_A_TIME)
        self._tasks: set[asyncio.Task[None]] = set()
        self._farewells: set[asyncio.Task[None]] = set()
        self._fingerprint: dict[str, str] = {}
        self._closing = False
        self._held = ExitStack()
        self._folder = Path()

    async def __aenter__(self) -> Self:
        self._folder = await asyncio.to_thread(self._held.enter_context, held_folder(PREFIX))
        self._spawn(self._tick())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.drain(0.0)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._farewells, return_exceptions=True)
        await asyncio.to_thread(self._held.close)

    async def open_session(self, client: str, request: OpenSession) -> SessionOpened:
        """Open a session of a task, waiting until it can judge."""
        if self._closing:
            raise refusals.closing()
        places.check_number(self._all, client, self._limits)
        name = secrets.token_urlsafe(16)
        # A task without a name is called as its folder is.
        folder = self._folder / name / "task"
        try:
            opening = opening_of(request, self._settings, folder)
        except TaskError as error:
            raise refusals.unusable_task(str(error)) from error
        self._make_room(client)
        session = Session(name, client, folder.parent, opening, standing=Standing.OPENING)
        self._sessions[name] = session
        try:
            await asyncio.to_thread(write_task, request.task, folder)
            await self._start(session)
        except TaskError as error:
            raise refusals.unusable_task(str(error)) from error
        except DiedError as error:
            raise refusals.failed(str(error)) from error
        except DeviceError as error:
            raise refusals.broken(str(error)) from error
        finally:
            if session.standing is not Standing.OPEN:
                await self._discard(session)
        if session.standing is not Standing.OPEN:
            # Forgotten while it was opened.
            raise refusals.closing()
        state = session.state
        self._follow(f"{client} opened the session {name}")
        return SessionOpened(
            name, session.capacity, state.fingerprint, state.remarks, str(state.source), __version__
        )

    def session_status(self, client: str, name: str) -> SessionStatus:
        """How far a session is."""
        session = self._find(client, name)
        running, finished = len(session.running), session.ledger.finished
        return SessionStatus(session.capacity, session.queued, running, finished)

    async def close_session(self, client: str, name: str) -> None:
        """Forget a session and whatever it was asked."""
        await self._discard(self._find(client, name))
        self._follow(f"{client} closed the session {name}")

    def put(self, client: str, name: str, key: str, submission: Submission | GateSubmission) -> Put:
        """Queue a kernel under a key, unless the key holds one; SAME and OTHER change nothing."""
        session = self._find(client, name)
        found = session.ledger.look(key, submission)
        if found is not Put.NEW:
            return found
        if self._closing:
            raise refusals.closing()
        if session.standing is Standing.BROKEN:
            raise refusals.broken(session.problem)
        places.check_queue(self._all, session, self._limits)
        if session.standing is Standing.KEPT:
            self._make_room(client)
            self._begin_opening(session)
        job = Job(key, submission)
        session.ledger.enter(job)
        session.queued += 1
        session.used = time.monotonic()
        self._queue.put(client, (session, job))
        self._dispatch()
        return found

    async def results(self, client: str, name: str, after: int, wait: float) -> bytes:
        """`Results` as JSON, once there is one or so many seconds have passed; those up to `after` are forgotten."""
        session = self._find(client, name)
        session.ledger.acknowledge(after)
        deadline = time.monotonic() + wait
        while not session.ledger.unacknowledged:
            if session.standing is Standing.BROKEN:
                raise refusals.broken(session.problem)
            if self._closing and not session.running:
                raise refusals.closing()
            left = deadline - time.monotonic()
            if left <= 0:
                break
            await session.hear(left)
            self._find(client, name)
        return session.ledger.results()

    @property
    def status(self) -> ServerStatus:
        """How busy the machine is."""
        sessions = sum(session.has_process for session in self._sessions.values())
        device, queued = self._settings.kind, len(self._queue)
        return ServerStatus(__version__, device, self._fingerprint, sessions, queued, self._running)

    async def drain(self, seconds: float) -> None:
        """Take no more work; wait up to so many seconds for what is being judged, and until it is fetched."""
        self._closing = True
        for session in self._sessions.values():
            session.tell()
        deadline = time.monotonic() + seconds
        while self._running and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        deadline = min(deadline, time.monotonic() + FAREWELL_SECONDS)
        while self._unfetched and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        for session in self._all:
            await self._discard(session)

    @property
    def _all(self) -> tuple[Session, ...]:
        return tuple(self._sessions.values())

    @property
    def _running(self) -> int:
        return sum(len(session.running) for session in self._sessions.values())

    @property
    def _unfetched(self) -> int:
        return sum(session.ledger.unacknowledged for session in self._sessions.values())

    @property
    def _capacity(self) -> int:
        """All sessions share one machine, and each of them says what it takes."""
        open_ones = (each for each in self._sessions.values() if each.standing is Standing.OPEN)
        return max((session.capacity for session in open_ones), default=0)

    def _find(self, client: str, name: str) -> Session:
        session = self._sessions.get(name)
        if session is None or session.client != client:
            if self._closing:
                raise refusals.closing()
            raise refusals.unknown_session()
        session.asked = time.monotonic()
        return session

    def _make_room(self, client: str) -> None:
        """See to it that one more session of a client can have a process."""
        idle = places.to_rest(self._all, client, self._limits)
        if idle is not None:
            self._rest(idle)

    def _rest(self, session: Session) -> None:
        """End a session's process; its task stays, and the next kernel starts another."""
        session.standing = Standing.KEPT
        self._let_go(session)

    def _begin_opening(self, session: Session) -> None:
        session.standing = Standing.OPENING
        self._spawn(self._reopen(session))

    async def _start(self, session: Session) -> None:
        """Give a session a process. Raises TaskError, DeviceError and DiedError."""
        async with self._openings:
            heard, lost = partial(self._heard, session), partial(self._lost, session)
            evaluator = await Evaluator.open(self._nursery, session.opening, heard, lost)
        if session.name not in self._sessions:
            await evaluator.close()
            return
        session.evaluator, session.said = evaluator, evaluator.state
        session.standing, session.used = Standing.OPEN, time.monotonic()
        self._fingerprint = evaluator.state.fingerprint
        self._dispatch()

    async def _reopen(self, session: Session) -> None:
        while session.name in self._sessions:
            try:
                await self._start(session)
            except (TaskError, DeviceError, DiedError) as error:
                session.failures += 1
                if session.failures >= MAX_FAILURES:
                    self._break(session, str(error))
                    return
                continue
            return

    def _dispatch(self) -> None:
        if self._closing:
            return
        while self._running < self._capacity:
            turn = self._queue.take(lambda item: item[0].can_run(item[1]))
            if turn is None:
                return
            turn.item[0].run(turn, time.monotonic())

    def _heard(self, session: Session, ticket: int, evaluation: Evaluation) -> None:
        visit = session.running.pop(ticket, None)
        if visit is None:
            self._lost(session, DiedError("The process of the session answered what it wasn't asked."))
            return
        session.failures = 0
        self._finish(session, visit, evaluation)

    def _finish(self, session: Session, visit: Visit, evaluation: Evaluation) -> None:
        self._settle(visit)
        session.ledger.finish(visit.turn.item[1], evaluation)
        session.used = time.monotonic()
        session.tell()
        self._dispatch()

    def _settle(self, visit: Visit) -> None:
        self._queue.settle(visit.turn, time.monotonic() - visit.since)

    def _lost(self, session: Session, error: Exception) -> None:
        """What it was judging is tried again; what costs one process after the other is told so."""
        self._let_go(session)
        visits = list(session.running.values())
        session.running.clear()
        session.failures += 1
        for visit in reversed(visits):
            job = visit.turn.item[1]
            if isinstance(error, DiedError):
                job.losses += 1
            if job.losses >= MAX_LOSSES:
                session.failures = 0
                self._finish(session, visit, _crashed(session, error))
            else:
                self._settle(visit)
                self._queue.put_back(session.client, visit.turn.item)
                session.queued += 1
        self._follow(f"The session {session.name} of {session.client} lost its process: {error}")
        if session.failures >= MAX_FAILURES:
            self._break(session, str(error))
        elif session.queued:
            self._begin_opening(session)
        else:
            session.standing = Standing.KEPT

    def _break(self, session: Session, problem: str) -> None:
        session.standing, session.problem = Standing.BROKEN, problem
        self._drop(session)
        session.tell()

    def _drop(self, session: Session) -> None:
        """Forget what waits."""
        self._queue.drop(lambda item: item[0] is session)
        session.queued = 0

    def _let_go(self, session: Session) -> None:
        if session.evaluator is not None:
            _keep(session.evaluator.close(), self._farewells)
            session.evaluator = None

    async def _discard(self, session: Session) -> None:
        """Forget a session, with its process and its task."""
        if self._sessions.pop(session.name, None) is None:
            return
        self._drop(session)
        for visit in session.running.values():
            self._settle(visit)
        session.running.clear()
        session.tell()
        if session.evaluator is not None:
            await session.evaluator.close()
            session.evaluator = None
        await asyncio.to_thread(shutil.rmtree, session.folder, ignore_errors=True)
        self._dispatch()

    async def _tick(self) -> None:
        """End what has been idle, forgotten or stuck for too long."""
        buried = time.monotonic()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = time.monotonic()
            if now - buried > BURIAL_SECONDS:
                await asyncio.to_thread(self._nursery.bury)
                buried = now
            for session in self._all:
                stuck = any(
                    now - visit.since > self._limits.stalled_seconds for visit in session.running.values()
                )
                if stuck:
                    limit = f"its limit of {self._limits.stalled_seconds:g} s"
                    self._lost(session, DiedError(f"The process of the session took more than {limit}."))
                elif session.has_work or session.standing is Standing.OPENING:
                    continue
                elif session.standing is Standing.OPEN and now - session.used > self._limits.idle_seconds:
                    self._rest(session)
                elif now - max(session.used, session.asked) > self._limits.kept_seconds:
                    await self._discard(session)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        _keep(work, self._tasks)


def _keep(work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
    """Let a coroutine run, as one of some tasks until it has ended."""
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


def _crashed(session: Session, error: Exception) -> Evaluation:
    message = f"It was judged twice, and each time the process was lost: {error}"
    return Evaluation(Outcome.CRASH, session.state.source, message, guard=Guard.SEPARATE_PROCESS)
