"""A child process that answers one request at a time, and is replaced when it dies or takes too long."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from mctskernel.core.device import DeviceError
from mctskernel.core.evaluation import Outcome
from mctskernel.profiling.processes import child_process
from mctskernel.profiling.processes.channel import Broken
from mctskernel.profiling.processes.child_process import LostError

MAX_FAILED_STARTS = 3
OPENING_SECONDS = 180.0
REOPENING_SECONDS = 20.0
"""How long a replacement may take to open: what is slow the first time has been read by then."""

Reply = TypeVar("Reply")


class Conversation(Generic[Reply]):
    """Requests and replies with a process that runs `module`. For one thread, besides `interrupt`.

    `opening` is its first request, sent again to every replacement; `opened` gets the reply before any other request
    is sent, and may send requests itself. `role` is what the process does, for messages: `evaluated the kernel`.
    """

    def __init__(
        self,
        module: str,
        role: str,
        opening: msgspec.Struct,
        replies: msgspec.msgpack.Decoder[Reply],
        opened: Callable[[Reply], None] = lambda _: None,
        *,
        shared: tuple[int, ...] = (),
        opening_seconds: float = OPENING_SECONDS,
        own_session: bool = True,
    ) -> None:
        self._module, self._role, self._opening = module, role, opening
        self._replies, self.opened = replies, opened
        self._shared, self._opening_seconds, self._own_session = shared, opening_seconds, own_session
        self._failed_starts = 0
        self._was_open = self._ready = False
        self._interrupted = self._closed = self._is_paused = False
        self._child = self._start()

    @property
    def pid(self) -> int:
        """The process's number; another one after each replacement."""
        return self._child.pid

    def ask(self, request: msgspec.Struct, seconds: float, *, of_processor: bool = False) -> Reply:
        """The reply to a request, waited for up to `seconds`, or so much processor time, once the process is open.

        Raises LostError when there is none: the process has been replaced. Raises DeviceError when no process can be
        opened at all, or the reply is Broken.
        """
        self.open()
        if self._child.channel.has_unread():
            # A reply that no request asked for would pass for the reply to this one.
            self.renew()
            self.open()
        try:
            reply = self._child.ask(request, self._replies, seconds, of_processor=of_processor)
        except LostError:
            self.renew()
            raise
        return _usable(reply)

    def open(self) -> None:
        """Wait until the process is open."""
        # This may be called by `opened`: the start has succeeded only when that has returned.
        if self._is_paused and self._interrupted:
            raise DeviceError("The evaluator was closed.")
        if self._is_paused:
            self._child, self._is_paused = self._start(), False
        while not self._ready:
            child, seconds = self._child, self._opening_seconds
            try:
                reply = child.receive(
                    self._replies, min(seconds, REOPENING_SECONDS) if self._was_open else seconds
                )
                # From here on `opened` may send requests.
                self._ready = self._was_open = True
                self.opened(_usable(reply))
                self._failed_starts = 0
            except LostError as error:
                if self._child is child:  # `opened` may have replaced it
                    self.renew()
                self._failed_starts += 1
                # A start that took minutes is not tried again.
                slow = error.outcome is Outcome.TIMEOUT
                if slow or self._interrupted or self._failed_starts >= MAX_FAILED_STARTS:
                    reason = f"{error.message} {error.log}".strip()
                    raise DeviceError(f"The evaluator can't be started: {reason}") from error

    def unexpected(self) -> LostError:
        """Replace a process that sent a wrong kind of reply: a candidate may have taken it over."""
        self.renew()
        return LostError(Outcome.CRASH, f"The process that {self._role} sent an unexpected reply.")

    def renew(self) -> None:
        """Replace the process."""
        if not self._interrupted:
            self.pause()
            self._child, self._is_paused = self._start(), False
        if self._interrupted:
            # `interrupt` was called during the start, and has ended the old process.
            self.interrupt()

    def pause(self) -> None:
        """End the process until it is needed again."""
        if not self._is_paused:
            self._is_paused, self._ready = True, False
            self._child.kill()

    def interrupt(self) -> None:
        """End the process for good, from any thread; a request in progress is lost."""
        self._interrupted = True
        if not self._is_paused:
            self._child.terminate()

    def close(self) -> None:
        """End the process for good and clean up. Call it when no other thread sends requests any more."""
        self._interrupted = True
        if not self._closed:
            self._closed = True
            self.pause()

    def _start(self) -> child_process.ChildProcess:
        child = child_process.start(self._module, self._role, self._shared, own_session=self._own_session)
        with contextlib.suppress(OSError):
            child.channel.send(self._opening)
        return child


def _usable(reply: Reply) -> Reply:
    """Raise DeviceError for a machine that can't be used."""
    if isinstance(reply, Broken):
        raise DeviceError(reply.message)
    return reply
