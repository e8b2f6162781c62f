"""A child process that answers one request at a time, and is replaced when it dies or takes too long."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from mctskernel.core.device import DeviceError
from mctskernel.core.evaluation import Guard, Outcome
from mctskernel.profiling.isolation.policy import Confinement
from mctskernel.profiling.processes import child_process
from mctskernel.profiling.processes.channel import ProtocolError

MAX_FAILED_STARTS = 3
OPENING_SECONDS = 180.0
REOPENING_SECONDS = 20.0
"""How long a replacement may take to open: what is slow the first time has been read by then."""

MAX_FOLDER_BYTES = 2 << 30
FOLDER_CHECK_SECONDS = 1.0
"""How often the size of a process's folder is checked while waiting for its reply."""

Reply = TypeVar("Reply")


class LostError(RuntimeError):
    """The process was lost during a request and has been replaced; `log` is the end of its standard error."""

    def __init__(self, outcome: Outcome, message: str, log: str = "") -> None:
        super().__init__(message)
        self.outcome = outcome
        self.message = message
        self.log = log

    @property
    def guard(self) -> Guard:
        """The guard that refuses a candidate that did this to its process."""
        return Guard.TIME_LIMIT if self.outcome is Outcome.TIMEOUT else Guard.SEPARATE_PROCESS


class Conversation(Generic[Reply]):
    """Requests and replies with a process that runs `module`. For one thread, besides `interrupt`.

    `opening` is its first request, sent again to every replacement; `opened` gets the reply before any other request
    is sent, and may send requests itself. `role` is what the process does, for messages: `evaluated the kernel`.
    `policy` returns, given the process's folder, what it may do from its start, where this machine has bubblewrap.
    """

    def __init__(
        self,
        module: str,
        role: str,
        opening: msgspec.Struct,
        replies: msgspec.msgpack.Decoder[Reply],
        opened: Callable[[Reply], None],
        *,
        policy: Callable[[Path], Confinement] | None = None,
        shared: tuple[int, ...] = (),
        opening_seconds: float = OPENING_SECONDS,
    ) -> None:
        self._module, self._role, self._opening = module, role, opening
        self._replies, self._opened = replies, opened
        self._policy, self._shared, self._opening_seconds = policy, shared, opening_seconds
        self._failed_starts = 0
        self._was_open = self._ready = False
        self._interrupted = self._closed = False
        self._folder_checked = time.monotonic()
        self._child = self._start()

    @property
    def pid(self) -> int:
        """The process's number; another one after each replacement."""
        return self._child.pid

    def ask(self, request: msgspec.Struct, seconds: float) -> Reply:
        """The reply to a request, waited for up to `seconds` once the process is open.

        Raises LostError when there is none, and DeviceError when no process can be opened at all.
        """
        self.open()
        if self._child.channel.has_unread():
            # A reply that no request asked for would pass for the reply to this one.
            self.renew()
            self.open()
        # A process that died while idle is noticed when its socket is read.
        with contextlib.suppress(OSError):
            self._child.channel.send(request)
        return self._receive(seconds)

    def open(self) -> None:
        """Wait until the process is open."""
        if self._ready:
            # This may be a request of `opened`: the start has succeeded only when that has returned.
            return
        while not self._ready:
            try:
                patience = self._opening_seconds
                reply = self._receive(min(patience, REOPENING_SECONDS) if self._was_open else patience)
                # From here on `opened` may send requests.
                self._ready = self._was_open = True
                self._opened(reply)
            except LostError as error:
                self._failed_starts += 1
                # A start that took minutes is not tried again.
                slow = error.outcome is Outcome.TIMEOUT
                if slow or self._interrupted or self._failed_starts >= MAX_FAILED_STARTS:
                    reason = f"{error.message} {error.log}".strip()
                    raise DeviceError(f"The evaluator can't be started: {reason}") from error
        self._failed_starts = 0

    def renew(self) -> None:
        """Replace the process."""
        if not self._interrupted:
            self._child.kill()
            self._ready, self._child = False, self._start()
        if self._interrupted:
            # `interrupt` was called during the start, and has ended the old process.
            self._child.terminate()

    def interrupt(self) -> None:
        """End the process for good, from any thread; a request in progress is lost."""
        self._interrupted = True
        self._child.terminate()

    def close(self) -> None:
        """End the process for good and clean up. Call it when no other thread sends requests any more."""
        self._interrupted = True
        if not self._closed:
            self._closed = True
            self._child.kill()

    def _start(self) -> child_process.ChildProcess:
        child = child_process.start(self._module, self._shared, self._policy)
        with contextlib.suppress(OSError):
            child.channel.send(self._opening)
        return child

    def _receive(self, seconds: float) -> Reply:
        channel, deadline = self._child.channel, time.monotonic() + seconds
        try:
            while (reply := channel.next_message(self._replies)) is None:
                left = deadline - time.monotonic()
                self._check_folder()
                if left > 0 and not select.select([channel], [], [], min(left, FOLDER_CHECK_SECONDS))[0]:
                    continue
                if left <= 0:
                    stage = self._child.stage()
                    slow = f"The process that {self._role} took more than its limit of {seconds:g} s."
                    slow += f" It was in the stage '{stage}'." if stage else ""
                    raise self._lost(Outcome.TIMEOUT, slow)
                if not channel.receive_available():
                    how = self._child.stop_reason()
                    raise self._lost(Outcome.CRASH, f"The process that {self._role} {how}.")
        except ProtocolError as error:
            raise self._lost(Outcome.CRASH, f"The process that {self._role} sent {error}.") from error
        return reply

    def _check_folder(self) -> None:
        if time.monotonic() - self._folder_checked < FOLDER_CHECK_SECONDS:
            return
        self._folder_checked = time.monotonic()
        if child_process.folder_bytes(self._child.scratch) > MAX_FOLDER_BYTES:
            full = f"wrote more than its limit of {MAX_FOLDER_BYTES >> 20} MiB"
            raise self._lost(Outcome.CRASH, f"The process that {self._role} {full}.")

    def _lost(self, outcome: Outcome, message: str) -> LostError:
        log = self._child.last_words()
        self.renew()
        return LostError(outcome, message, log)
