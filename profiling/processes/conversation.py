"""A child process that is asked one thing at a time, and replaced when it dies or takes too long."""

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
"""How long a replacement may take to open, once one process has: whatever is slow the first time was read then."""

MAX_FOLDER_BYTES = 2 << 30
LOOKING_SECONDS = 1.0
"""How often a process's folder is measured while it is waited for."""

Reply = TypeVar("Reply")


class LostError(RuntimeError):
    """The process was lost over a request and has been replaced; `log` is the end of its standard error."""

    def __init__(self, outcome: Outcome, message: str, log: str = "") -> None:
        super().__init__(message)
        self.outcome = outcome
        self.message = message
        self.log = log

    @property
    def guard(self) -> Guard:
        """What a candidate that did this to its process was refused by."""
        return Guard.TIME_LIMIT if self.outcome is Outcome.TIMEOUT else Guard.SEPARATE_PROCESS


class Conversation(Generic[Reply]):
    """Talks to a process that runs `module`. For one thread, besides `interrupt`.

    `opening` is its first request, sent again to every replacement; `opened` gets the answer before anything else
    is asked, and may ask too. `role` is what the process does, for messages: `judged the kernel`. `policy` says, given
    its folder, what the process may do from its start, where this machine has bubblewrap.
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
        self._module = module
        self._role = role
        self._opening_seconds = opening_seconds
        self._opening = opening
        self._replies = replies
        self._opened = opened
        self._policy = policy
        self._shared = shared
        self._failed_starts = 0
        self._was_open = False
        self._interrupted = False
        self._closed = False
        self._ready = False
        self._looked = time.monotonic()
        self._child = self._start()

    @property
    def pid(self) -> int:
        """The process's number; another one after each replacement."""
        return self._child.pid

    def ask(self, request: msgspec.Struct, seconds: float) -> Reply:
        """The answer to a request, waited for up to `seconds` once the process is open.

        Raises LostError when there is none, and DeviceError when no process can be opened at all.
        """
        self.open()
        if self._child.channel.has_spoken():
            # An answer to what nobody asked would pass for one to what is asked now.
            self.renew()
            self.open()
        return self._exchange(request, seconds)

    def open(self) -> None:
        """Wait until the process is open."""
        if self._ready:
            # Perhaps `opened` is asking: only when it is done has the process started.
            return
        while not self._ready:
            try:
                patience = self._opening_seconds
                reply = self._receive(min(patience, REOPENING_SECONDS) if self._was_open else patience)
                # From here on `opened` may ask.
                self._ready = self._was_open = True
                self._opened(reply)
            except LostError as error:
                self._failed_starts += 1
                # What took minutes once is not tried again.
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
            # Told while the new one was started: `interrupt` has met the old one.
            self._child.terminate()

    def interrupt(self) -> None:
        """End the process for good, from any thread: what is being asked is lost."""
        self._interrupted = True
        self._child.terminate()

    def close(self) -> None:
        """End the process for good and tidy up. Call it when no other thread asks any more."""
        self._interrupted = True
        if not self._closed:
            self._closed = True
            self._child.kill()

    def _start(self) -> child_process.ChildProcess:
        child = child_process.start(self._module, self._shared, self._policy)
        with contextlib.suppress(OSError):
            child.channel.send(self._opening)
        return child

    def _exchange(self, request: msgspec.Struct, seconds: float) -> Reply:
        # A process that died while idle is noticed when its silence is read.
        with contextlib.suppress(OSError):
            self._child.channel.send(request)
        return self._receive(seconds)

    def _receive(self, seconds: float) -> Reply:
        channel, deadline = self._child.channel, time.monotonic() + seconds
        try:
            while (reply := channel.next_message(self._replies)) is None:
                left = deadline - time.monotonic()
                self._look_at_folder()
                if left > 0 and not select.select([channel], [], [], min(left, LOOKING_SECONDS))[0]:
                    continue
                if left <= 0:
                    stage = self._child.stage()
                    slow = f"The process that {self._role} took more than its limit of {seconds:g} s."
                    slow += f" It had come to the stage '{stage}'." if stage else ""
                    raise self._lost(Outcome.TIMEOUT, slow)
                if not channel.receive_available():
                    how = self._child.ending()
                    raise self._lost(Outcome.CRASH, f"The process that {self._role} {how}.")
        except ProtocolError as error:
            raise self._lost(Outcome.CRASH, f"The process that {self._role} sent {error}.") from error
        return reply

    def _look_at_folder(self) -> None:
        if time.monotonic() - self._looked < LOOKING_SECONDS:
            return
        self._looked = time.monotonic()
        if child_process.folder_bytes(self._child.scratch) > MAX_FOLDER_BYTES:
            full = f"wrote more than its limit of {MAX_FOLDER_BYTES >> 20} MiB"
            raise self._lost(Outcome.CRASH, f"The process that {self._role} {full}.")

    def _lost(self, outcome: Outcome, message: str) -> LostError:
        log = self._child.last_words()
        self.renew()
        return LostError(outcome, message, log)
