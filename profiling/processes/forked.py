"""Calls in processes of their own, forked from one that has imported what they need.

PyTorch takes seconds to import: a server process imports it once, and every call is made in a fork of that. What the
call leaves behind, a GPU's context or a problem's own modules, ends with the fork. Messages are pickled, so only
trusted code is to be called.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Generic, TypeVar

from mctskernel.core.documents import excerpt
from mctskernel.core.user_errors import UserError
from mctskernel.profiling import build_cache
from mctskernel.profiling.processes.channel import die_with_parent
from mctskernel.profiling.processes.sessions import end_session

Result = TypeVar("Result")

_FORKS = multiprocessing.get_context("forkserver")
_FRESH = multiprocessing.get_context("spawn")

_forked = True
"""Whether forks can use a GPU: not where an import has initialised CUDA in the server already, or has left what
crashes in them."""

JOIN_SECONDS = 1.0  # how long to wait for a process that was killed


def import_first(modules: Sequence[str]) -> None:
    """Start the server, which imports these modules but for missing ones; without effect once it runs.

    Bytecode is kept in the cache folder where Python may not keep it beside sources, as in many containers.
    """
    builds = build_cache.cache_folder()
    if sys.dont_write_bytecode and builds is not None:
        # Otherwise each process that imports PyTorch compiles it again, for eight seconds.
        sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(builds.parent / "bytecode")
        sys.dont_write_bytecode = False
    # Otherwise PyTorch asks CUDA whether there is a GPU, which no fork could use after that.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    _FORKS.set_forkserver_preload(list(modules))
    forkserver.ensure_running()


class CallError(RuntimeError):
    """A call that raised an exception, or whose process was lost; the message is a sentence."""


class ForkedCall(Generic[Result]):
    """`function(caller, *arguments)` in a process that leads a session of its own and ends with this one.

    `said` has the messages that came, and `ended` the result or a CallError once there is one. The process's output
    goes to the file `log`.
    """

    def __init__(self, function: Callable[..., Result], *arguments: object, log: Path) -> None:
        self.said: list[Any] = []
        self.ended: Result | CallError | None = None
        self._call, self._log, self._sent = (function, arguments, log), log, list[object]()
        self._start()

    def _start(self) -> None:
        self._is_forked = _forked
        context = _FORKS if _forked else _FRESH
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_call, args=(other, *self._call, _forked))

        def start() -> None:
            with other, suppress(OSError):  # which is seen when there is no process
                self._process.start()

        # The server forks nothing before it has imported everything.
        self._starting = threading.Thread(target=start, daemon=True)
        self._starting.start()

    def send(self, message: object) -> None:
        """Send a message, for which the call waits with `receive`."""
        self._sent.append(message)
        with suppress(OSError):
            self._connection.send(message)

    def collect(self) -> bool:
        """Read what has come; whether the call has ended."""
        try:
            while self.ended is None and self._connection.poll():
                kind, content = self._connection.recv()
                match kind:
                    case "said":
                        self.said.append(content)
                    case "unusable":
                        self._start_afresh()
                    case _:
                        self.ended = content
        except (EOFError, OSError):
            self._join()
            if self._is_forked and self._process.exitcode == -signal.SIGSEGV:
                self._start_afresh()
                return False
            self.ended = CallError(
                f"Its process ended with status {self._process.exitcode}: see {self._log}."
            )
        return self.ended is not None

    def _start_afresh(self) -> None:
        global _forked  # noqa: PLW0603 - of all calls
        _forked = False
        self.close()
        self._start()
        for message in self._sent:
            with suppress(OSError):
                self._connection.send(message)

    def close(self) -> None:
        """End the process, whatever it is doing, and what it started."""
        self._starting.join()
        if self._process.pid is not None and self._process.exitcode is None:
            end_session(self._process.pid)
            self._process.kill()
        self._join()
        self._connection.close()

    def _join(self) -> None:
        self._starting.join()
        if self._process.pid is not None:
            self._process.join(JOIN_SECONDS)


def wait_for(calls: Iterable[ForkedCall[Any]], seconds: float) -> None:
    """Wait until one of the calls says something or ends."""
    wait([each._connection for each in calls], seconds)


class Caller:
    """The caller as its call sees it: messages to it and from it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def say(self, message: object) -> None:
        """Send a message, which the caller finds in `said`."""
        self._connection.send(("said", message))

    def receive(self) -> Any:
        """Wait for a message of the caller."""
        return self._connection.recv()


def _call(
    connection: Connection,
    function: Callable[..., object],
    arguments: tuple[object, ...],
    log: Path,
    forked: bool,  # noqa: FBT001 - as `Process` passes it
) -> None:
    if forked and _is_cuda_lost():
        connection.send(("unusable", None))
        os._exit(0)
    os.setsid()
    parent = multiprocessing.parent_process()
    assert parent is not None  # noqa: S101 - this is a child
    die_with_parent(parent.sentinel)
    with log.open("ab") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    faulthandler.enable()
    try:
        ended: object = function(Caller(connection), *arguments)
    except (CallError, UserError) as error:
        ended = CallError(excerpt(error))
    except Exception as error:  # noqa: BLE001 - the caller goes on with other calls
        traceback.print_exc()
        ended = CallError(f"{type(error).__name__}: {excerpt(error)}")
    connection.send(("ended", ended))
    sys.stderr.flush()
    # What was imported may have threads that don't end.
    os._exit(0)


def _is_cuda_lost() -> bool:
    """Whether PyTorch has initialised CUDA in the process that this one is a fork of."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda._is_in_bad_fork())
