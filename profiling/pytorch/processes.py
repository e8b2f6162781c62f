"""The processes of the PyTorch door, seen from the referee: forked, asked one thing at a time, stopped and killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from mctskernel.core.device import DeviceError
from mctskernel.core.evaluation import Outcome
from mctskernel.profiling.processes import child_process
from mctskernel.profiling.processes.channel import ProtocolError
from mctskernel.profiling.processes.conversation import LostError
from mctskernel.profiling.pytorch import sessions
from mctskernel.profiling.pytorch.orders import ANSWERS, Fork, Forked, Look, Reap, Role, Seen
from mctskernel.profiling.pytorch.protocol import REPLIES, Reply, receive, send

STARTING_SECONDS = 180.0
FORKING_SECONDS = 30.0
ENDING_SECONDS = 1.0


@dataclass(frozen=True)
class ModuleProcess:
    """A process that owns a module, the leader of a session of its own, with a folder of its own.

    It ends when `lifeline`, the writing end of a pipe, is closed: by `kill`, or by our own death. `said` is its
    standard error, open here: under its name the process may put a link to any file of ours.
    """

    server: ForkServer
    connection: socket.socket
    pid: int
    lifeline: int
    scratch: Path
    said: BinaryIO
    role: str

    def ask(
        self, request: msgspec.Struct, descriptors: tuple[int, ...] = (), *, seconds: float
    ) -> tuple[Reply, tuple[int, ...]]:
        """The answer to a request and its descriptors, which are the caller's to close.

        Raises LostError when there is none in time.
        """
        self.send(request, descriptors)
        return self.receive(seconds)

    def send(self, request: msgspec.Struct, descriptors: tuple[int, ...] = ()) -> None:
        """Send a request; that nobody listens any more is noticed when the answer is read."""
        with contextlib.suppress(BrokenPipeError, ConnectionError):
            send(self.connection, request, descriptors)

    def receive(self, seconds: float) -> tuple[Reply, tuple[int, ...]]:
        """Wait for the answer to what was sent. Raises LostError."""
        self.connection.settimeout(seconds)
        try:
            received = receive(self.connection, REPLIES)
        except TimeoutError as error:
            slow = f"The process that {self.role} took more than its limit of {seconds:g} s."
            raise LostError(Outcome.TIMEOUT, slow, self._last_words()) from error
        except ProtocolError as error:
            message = f"The process that {self.role} sent {error}."
            raise LostError(Outcome.CRASH, message, self._last_words()) from error
        if received is None:
            message = f"The process that {self.role} {self.server.ending(self.pid)}."
            raise LostError(Outcome.CRASH, message, self._last_words())
        return received

    def pause(self) -> None:
        """Stop it and what it started: nothing of it runs while others are timed."""
        sessions.stop(self.pid)

    def resume(self) -> None:
        """Let it go on."""
        sessions.resume(self.pid)

    def kill(self) -> None:
        """End it and everything that it started, at once, and remove its folder."""
        sessions.end(self.pid)
        self.server.reap(self.pid)
        self.connection.close()
        os.close(self.lifeline)
        self.said.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _last_words(self) -> str:
        return child_process.end_of(self.said)


class ForkServer:
    """A process with PyTorch imported, from which those that own modules are forked. For one thread."""

    def __init__(self) -> None:
        self._child = child_process.start("mctskernel.profiling.pytorch.fork_server")
        self._connection = socket.socket(fileno=os.dup(self._child.channel.fileno()))
        self._seconds = STARTING_SECONDS

    def fork(self, role: Role, doing: str) -> ModuleProcess:
        """A new process; `doing` is what it does, for messages: `called the candidate`. Raises DeviceError."""
        scratch = Path(tempfile.mkdtemp(prefix="mctskernel-module-"))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        watched, lifeline = os.pipe()
        said = (scratch / "stderr").open("w+b")
        with theirs:
            answer = self._ask(Fork(role, str(scratch)), (theirs.fileno(), watched, said.fileno()))
        os.close(watched)
        if not isinstance(answer, Forked):
            raise DeviceError("The process that forks others answered what it wasn't asked.")
        return ModuleProcess(self, ours, answer.pid, lifeline, scratch, said, doing)

    def ending(self, pid: int) -> str:
        """How a process that has closed its socket ended: `exited with status 3`."""
        return self._until_ended(Look(pid)) or "hung up"

    def reap(self, pid: int) -> None:
        """Let go of a process that was killed; its number may be another's from now on."""
        self._until_ended(Look(pid))
        self._ask(Reap(pid))

    def close(self) -> None:
        """End it."""
        self._connection.close()
        self._child.kill()

    def _until_ended(self, order: Look) -> str:
        end = time.monotonic() + ENDING_SECONDS
        while time.monotonic() < end:
            answer = self._ask(order)
            if isinstance(answer, Seen) and answer.ending:
                return answer.ending
            time.sleep(0.002)
        return ""

    def _ask(self, order: msgspec.Struct, descriptors: tuple[int, ...] = ()) -> Forked | Seen:
        self._connection.settimeout(self._seconds)
        try:
            send(self._connection, order, descriptors)
            received = receive(self._connection, ANSWERS)
        except (OSError, ProtocolError) as error:
            raise DeviceError(f"PyTorch's processes can't be started: {error}") from error
        if received is None:
            words = self._child.last_words()
            raise DeviceError(f"PyTorch's processes can't be started: {words[-2000:]}")
        self._seconds = FORKING_SECONDS
        return received[0]


@contextlib.contextmanager
def fork_server() -> Iterator[ForkServer]:
    """A fork server that ends with the block, and everything that it forked with it."""
    server = ForkServer()
    try:
        yield server
    finally:
        server.close()
