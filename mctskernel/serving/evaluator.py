"""A session's process, seen from the server's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from mctskernel.core.device import DeviceError
from mctskernel.core.documents import MOST_TOLD
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.task import TaskError
from mctskernel.profiling.processes.channel import ProtocolError
from mctskernel.profiling.processes.child_process import ChildProcess
from mctskernel.serving.orphans import Nursery
from mctskernel.serving.session_protocol import REPLIES, Broken, Judged, Open, Opened, Reply, Request

_LOG = logging.getLogger(__name__)

MODULE = "mctskernel.serving.session_process"

OPENING_SECONDS = 300.0
"""How long the executor of a session may take to open: it draws the task's inputs and starts workers."""

THREADS = 4
"""How many threads a session's reference may compute with."""

MOST_LOGGED = 4000
"""Characters of what a process wrote before it ended that go into the log."""

Heard = Callable[[int, Evaluation], None]
Lost = Callable[[Exception], None]


class DiedError(RuntimeError):
    """The process of a session didn't start, ended, or sent what is no message; its machine may be in order."""


class Evaluator:
    """One session's process. `heard` is told of evaluations by ticket, `lost` once, when it is gone.

    It is lost by a DiedError, or by the DeviceError or TaskError that it gave for its last word. What it sends is read
    as values of known types and bounded size: it runs a client's code.
    """

    def __init__(self, nursery: Nursery, child: ChildProcess, heard: Heard, lost: Lost) -> None:
        self._nursery, self._child, self._heard, self._lost = nursery, child, heard, lost
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[Opened] = self._loop.create_future()
        # Whoever doesn't read would otherwise stop the event loop.
        self._sending = ThreadPoolExecutor(1, "session")
        self._gone = False
        self._farewell: asyncio.Task[None] | None = None
        self._loop.add_reader(child.channel.fileno(), self._read)

    @classmethod
    async def open(cls, nursery: Nursery, opening: Open, heard: Heard, lost: Lost) -> Evaluator:
        """Start a process, with a folder beside its task's, and wait until its executor is open.

        Raises TaskError, DeviceError and DiedError.
        """
        within = Path(opening.task_folder).parent
        try:
            child = await asyncio.to_thread(nursery.start, MODULE, THREADS, within)
        except OSError as error:
            raise DiedError(f"The process of the session can't be started: {error.strerror}.") from error
        evaluator = cls(nursery, child, heard, lost)
        evaluator.send(opening)
        try:
            async with asyncio.timeout(OPENING_SECONDS):
                await asyncio.shield(evaluator._opened)
        except TimeoutError as error:
            await evaluator.close()
            raise DeviceError(f"The session took more than {OPENING_SECONDS:g} s to open.") from error
        except BaseException:
            await evaluator.close()
            raise
        return evaluator

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._child.pid

    @property
    def state(self) -> Opened:
        """What the executor is, as it said last."""
        return self._opened.result()

    def send(self, message: Open | Request) -> None:
        """Ask for something."""
        self._sending.submit(self._send, message)

    async def close(self) -> None:
        """End the process and everything that it started, and remove its folder."""
        self._leave()
        if self._farewell is not None:
            await self._farewell
        # Unblocks whoever sends to a process that doesn't read.
        self._child.terminate()
        await asyncio.to_thread(self._end)

    def _end(self) -> None:
        self._sending.shutdown(cancel_futures=True)
        self._nursery.end(self._child)

    def _send(self, message: msgspec.Struct) -> None:
        # That it is gone is noticed when its silence is read.
        with contextlib.suppress(OSError):
            self._child.channel.send(message)

    def _read(self) -> None:
        channel = self._child.channel
        try:
            if not channel.receive_available():
                self._leave()
                self._farewell = self._loop.create_task(self._lose())
                return
            while not self._gone and (reply := channel.next_message(REPLIES)) is not None:
                self._take(reply)
        except ProtocolError as error:
            self._fail(DiedError(f"The process of the session sent {error}."))

    def _take(self, reply: Reply) -> None:
        match reply:
            case Opened():
                if self._opened.done():
                    self._opened = self._loop.create_future()
                self._opened.set_result(reply)
            case Judged(ticket, evaluation):
                self._heard(ticket, evaluation)
            case Broken(message, task_at_fault):
                self._fail(TaskError(message) if task_at_fault else DeviceError(message))

    async def _lose(self) -> None:
        # Waits a little for a process that has closed its socket and lives on.
        how = await asyncio.to_thread(self._child.ending)
        if not self._opened.done():
            how = f"{how} while it opened"
        words = _printable(self._child.last_words()).strip()
        if words:
            # Indented, so that none of it looks like a line of the log's own.
            said = textwrap.indent(words[-MOST_LOGGED:], "    ")
            _LOG.warning("The process of a session %s. It wrote last:\n%s", how, said)
        self._fail(DiedError(f"The process of the session {how}{_reason(words)}."))

    def _fail(self, error: Exception) -> None:
        self._leave()
        if self._opened.done():
            self._lost(error)
        else:
            self._opened.set_exception(error)

    def _leave(self) -> None:
        """Hear no more of it."""
        if not self._gone:
            self._gone = True
            self._loop.remove_reader(self._child.channel.fileno())


def _reason(words: str) -> str:
    """The last line of what a process wrote: in Python it names the error, and no path of a traceback."""
    line = words.rpartition("\n")[2][:MOST_TOLD].rstrip(".")
    return f": {line}" if line else ""


def _printable(words: str) -> str:
    """What a client's code wrote, without orders to a terminal."""
    return "".join(
        each if each.isprintable() or each == "\n" else "\N{REPLACEMENT CHARACTER}" for each in words
    )
