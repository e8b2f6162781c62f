"""The processes of the module evaluator: forked, asked, stopped, and killed with everything that they started."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
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
from mctskernel.profiling.pytorch.protocol import (
    FORK_REPLIES,
    REPLIES,
    Ended,
    Fork,
    Forked,
    Reply,
    Role,
    Wait,
    receive,
    send,
)

STARTING_SECONDS = 180.0
FORKING_SECONDS = 30.0
ENDING_SECONDS = 1.0
SETTLING_SECONDS = 1.0
"""How long a session is searched for processes that were started while it was being stopped."""

_STOPPED = frozenset("Tt")
_DEAD = frozenset("ZX")


@dataclass(frozen=True)
class ModuleProcess:
    """A process that runs a module, the leader of a session of its own, with a folder of its own.

    It ends when `lifeline`, the writing end of a pipe, is closed: by `kill`, or by our own death. `stderr` is open
    here: under the file's name the process may put a link to any file of ours. `role` is what it does, for
    messages.
    """

    server: ForkServer
    connection: socket.socket
    pid: int
    lifeline: int
    scratch: Path
    stderr: BinaryIO
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
        """Send a request; a process that is gone is noticed when the answer is read."""
        with contextlib.suppress(ConnectionError):
            send(self.connection, request, descriptors)

    def receive(self, seconds: float) -> tuple[Reply, tuple[int, ...]]:
        """Wait for the answer to what was sent. Raises LostError."""
        self.connection.settimeout(seconds)
        try:
            received = receive(self.connection, REPLIES)
        except TimeoutError as error:
            raise self._lost(Outcome.TIMEOUT, f"took more than its limit of {seconds:g} s") from error
        except ProtocolError as error:
            raise self._lost(Outcome.CRASH, f"sent {error}") from error
        if received is None:
            raise self._lost(Outcome.CRASH, self.server.stop_reason(self.pid))
        return received

    def pause(self) -> None:
        """Stop it and what it started: nothing of it runs while others are timed."""
        stop_session(self.pid)

    def resume(self) -> None:
        """Let it go on."""
        resume_session(self.pid)

    def kill(self) -> None:
        """End it and everything that it started, at once, and remove its folder."""
        end_session(self.pid)
        self.server.reap(self.pid)
        self.connection.close()
        os.close(self.lifeline)
        self.stderr.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _lost(self, outcome: Outcome, how: str) -> LostError:
        message = f"The process that {self.role} {how}."
        return LostError(outcome, message, child_process.end_of(self.stderr))


class ForkServer:
    """A process with PyTorch imported, from which those that run modules are forked. For one thread."""

    def __init__(self) -> None:
        self._child = child_process.start("mctskernel.profiling.pytorch.worker")
        self._connection = socket.socket(fileno=os.dup(self._child.channel.fileno()))
        self._seconds = STARTING_SECONDS

    def fork(self, role: Role, doing: str) -> ModuleProcess:
        """A new process; `doing` is what it does, for messages: `calls the module`. Raises DeviceError."""
        scratch = Path(tempfile.mkdtemp(prefix="mctskernel-module-"))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        watched, lifeline = os.pipe()
        stderr = (scratch / "stderr").open("w+b")
        with theirs:
            answer = self._ask(Fork(role, str(scratch)), (theirs.fileno(), watched, stderr.fileno()))
        os.close(watched)
        if not isinstance(answer, Forked):
            raise DeviceError("The fork server gave an answer to another question.")
        return ModuleProcess(self, ours, answer.pid, lifeline, scratch, stderr, doing)

    def stop_reason(self, pid: int) -> str:
        """How a process that has closed its socket ended: `exited with status 3`."""
        end = time.monotonic() + ENDING_SECONDS
        while time.monotonic() < end:
            answer = self._ask(Wait(pid))
            if isinstance(answer, Ended) and answer.how:
                return answer.how
            time.sleep(0.002)
        return "hung up"

    def reap(self, pid: int) -> None:
        """Reap a process that was killed; its number may be another's from now on."""
        self.stop_reason(pid)
        self._ask(Wait(pid, reap=True))

    def close(self) -> None:
        """End it."""
        self._connection.close()
        self._child.kill()

    def _ask(self, request: msgspec.Struct, descriptors: tuple[int, ...] = ()) -> Forked | Ended:
        self._connection.settimeout(self._seconds)
        try:
            send(self._connection, request, descriptors)
            received = receive(self._connection, FORK_REPLIES)
        except (OSError, ProtocolError) as error:
            raise DeviceError(f"PyTorch's processes can't be started: {error}") from error
        if received is None:
            raise DeviceError(
                f"PyTorch's processes can't be started: {child_process.end_of(self._child.stderr)[-2000:]}"
            )
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


def stop_session(leader: int) -> None:
    """Stop every process of a session until `resume_session`."""
    _sweep(leader, signal.SIGSTOP, _STOPPED | _DEAD)


def resume_session(leader: int) -> None:
    """Let every process of a session go on."""
    for member, _ in _members(leader):
        _signal(member, signal.SIGCONT)


def end_session(leader: int) -> None:
    """Kill every process of a session. Its leader must not have been reaped: its number could be another's."""
    _sweep(leader, signal.SIGKILL, _DEAD)


def _sweep(leader: int, number: signal.Signals, settled: frozenset[str]) -> None:
    _signal(leader, number)
    end = time.monotonic() + SETTLING_SECONDS
    while time.monotonic() < end:
        left = [member for member, states in _members(leader) if not states <= settled]
        if not left:
            return
        for member in left:
            _signal(member, number)
        time.sleep(0.0001)


def _members(session: int) -> list[tuple[int, frozenset[str]]]:
    """The processes of a session, each with the states of its threads.

    A process whose first thread has ended looks like a zombie although others run, so all threads count.
    """
    found = []
    for entry in os.listdir("/proc"):  # noqa: PTH208 - called around every call that is timed
        with contextlib.suppress(OSError):
            if entry.isdigit() and os.getsid(int(entry)) == session:
                states = frozenset(_state(task) for task in Path("/proc", entry, "task").iterdir())
                found.append((int(entry), states))
    return found


def _state(task: Path) -> str:
    try:
        # Behind the program's name, which may hold anything.
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def _signal(member: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(member, number)
